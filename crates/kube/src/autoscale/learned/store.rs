//! Reads and writes the `ConfigMap`s of learned state.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::ByteString;
use kube::Client;
use kube::api::{GetParams, Patch, PatchParams, PostParams};
use kube::core::Request;
use serde::Deserialize;
use serde_json::{Value, json};

use super::shards::{LONGEST_VALUE, MOST, SHARDS, Shard, ShardUpdate, ShardWrite, Shards};
use crate::client::{self, ObjectKind, describe, has_code};
use crate::lease::Leadership;

/// The name of an object, without its number.
const NAME: &str = "rouse-scaling-state-";
/// How long one request may take.
const ANSWER: Duration = Duration::from_secs(5);

fn name(shard: usize) -> String {
    format!("{NAME}{shard}")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StateObject {
    metadata: StateMeta,
    #[serde(default)]
    binary_data: Option<BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StateMeta {
    #[serde(default)]
    resource_version: String,
}

impl StateObject {
    /// An entry that cannot be read is left out: what it had is learned again.
    fn shard(self) -> Shard {
        let read = |(key, value): (String, Value)| {
            let bytes = serde_json::from_value::<ByteString>(value).ok()?.0;
            (bytes.len() <= LONGEST_VALUE).then_some((key, bytes))
        };
        let entries = self.binary_data.unwrap_or_default().into_iter().take(2 * MOST).filter_map(read);
        Shard { version: Some(self.metadata.resource_version), entries: entries.collect() }
    }
}

/// Reads and writes the objects.
#[derive(Clone)]
pub(super) struct LearnedStore {
    pub(super) client: Client,
    /// The namespace of the controller.
    pub(super) namespace: String,
    pub(super) leadership: Leadership,
}

impl LearnedStore {
    fn request(&self) -> Request {
        Request::new(ObjectKind::CONFIG_MAP.path(Some(&self.namespace)))
    }

    /// Reads all objects, or says why one cannot be read.
    pub(super) async fn read(&self) -> Result<Shards, String> {
        let mut all = Vec::with_capacity(SHARDS);
        for shard in 0..SHARDS {
            all.push(self.read_one(shard).await.map_err(|error| failure(shard, &error))?);
        }
        Ok(Shards::new(all))
    }

    async fn read_one(&self, shard: usize) -> Result<Shard, kube::Error> {
        let request = self.request().get(&name(shard), &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        match client::within(ANSWER, self.client.request::<StateObject>(request)).await {
            Ok(object) => Ok(object.shard()),
            Err(error) if has_code(&error, 404) => Ok(Shard::default()),
            Err(error) => Err(error),
        }
    }

    /// Writes objects, while this process leads. Returns what they have then, and why something was not written.
    pub(super) async fn write(&self, writes: Vec<ShardWrite>) -> (Vec<ShardUpdate>, Option<String>) {
        let (mut updates, mut failed) = (Vec::new(), None);
        for write in writes {
            if !self.leadership.may_write() {
                break;
            }
            match self.write_one(&write).await {
                Ok(object) => updates.push(ShardUpdate::Written(write, object.metadata.resource_version)),
                // Another leader, or a person, has written it or deleted it.
                Err(error) if has_code(&error, 409) || has_code(&error, 404) => {
                    let read = self.read_one(write.shard).await;
                    updates.extend(read.ok().map(|read| ShardUpdate::Read(write.shard, read)));
                }
                Err(error) => failed = Some(failure(write.shard, &error)),
            }
        }
        (updates, failed)
    }

    async fn write_one(&self, write: &ShardWrite) -> Result<StateObject, kube::Error> {
        let value = |bytes: &Vec<u8>| json!(ByteString(bytes.clone()));
        let request = if let Some(version) = &write.version {
            let data: BTreeMap<&String, Option<Value>> =
                write.changes.iter().map(|(key, bytes)| (key, bytes.as_ref().map(value))).collect();
            let body = json!({ "metadata": { "resourceVersion": version }, "binaryData": data });
            self.request().patch(&name(write.shard), &PatchParams::default(), &Patch::Merge(body))
        } else {
            let new = write.changes.iter().filter_map(|(key, bytes)| Some((key, value(bytes.as_ref()?))));
            let body = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": name(write.shard),
                    "labels": {
                        "app.kubernetes.io/name": "rouse",
                        "app.kubernetes.io/component": "scaling-state",
                    },
                },
                "binaryData": new.collect::<BTreeMap<_, _>>(),
            });
            self.request().create(&PostParams::default(), body.to_string().into_bytes())
        };
        let request = request.map_err(kube::Error::BuildRequest)?;
        client::within(ANSWER, self.client.request(request)).await
    }
}

fn failure(shard: usize, error: &kube::Error) -> String {
    format!("ConfigMap {}, which has what idle policies have learned: {}", name(shard), describe(error))
}
