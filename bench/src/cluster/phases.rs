//! Records when a starting pod reaches each phase, from watches of the API server and by polling the pod and its Service.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt;
use kube::Client;
use kube::api::{DynamicObject, WatchEvent, WatchParams};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::objects::api;
use crate::Result;
use crate::clock::{Stopwatch, delay};

/// The poll interval.
const POLL: Duration = Duration::from_millis(2);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_millis(200);

/// The phases, in their usual order.
pub(super) const PHASES: [&str; 6] =
    ["pod bound", "pod IP", "container runs", "pod IP answers", "slice ready", "ClusterIP answers"];

/// When each phase was reached, in milliseconds since the request began.
#[derive(Debug, Clone, Default)]
pub(super) struct Reached(Arc<Mutex<[Option<f64>; 6]>>);

impl Reached {
    fn note(&self, phase: usize, began: Stopwatch) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reached) = all.get_mut(phase) {
            reached.get_or_insert(began.elapsed().as_secs_f64() * 1000.0);
        }
    }

    /// The phases reached so far.
    pub(super) fn all(&self) -> [Option<f64>; 6] {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One app that is about to start.
#[derive(Clone)]
pub(super) struct Watched {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) app: String,
    pub(super) cluster_ip: SocketAddr,
    pub(super) began: Stopwatch,
    pub(super) reached: Reached,
}

impl Watched {
    /// Follows the app until the set is dropped.
    pub(super) fn follow(&self) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        // An error shows as a phase that was not reached.
        let this = self.clone();
        tasks.spawn(async move { this.pods().await.unwrap_or_default() });
        let this = self.clone();
        tasks.spawn(async move { this.slices().await.unwrap_or_default() });
        let this = self.clone();
        tasks.spawn(async move {
            answers(this.cluster_ip).await;
            this.reached.note(5, this.began);
        });
        tasks
    }

    async fn pods(&self) -> Result<()> {
        let mut asked = JoinSet::new();
        let label = format!("app={}", self.app);
        self.watch("v1", "Pod", &label, |pod| {
            if pod["spec"]["nodeName"].is_string() {
                self.reached.note(0, self.began);
            }
            if let Some(ip) = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse().ok()) {
                self.reached.note(1, self.began);
                if asked.is_empty() {
                    let this = self.clone();
                    asked.spawn(async move {
                        answers(SocketAddr::new(ip, 8080)).await;
                        this.reached.note(3, this.began);
                    });
                }
            }
            if pod["status"]["containerStatuses"][0]["state"]["running"].is_object() {
                self.reached.note(2, self.began);
            }
        })
        .await
    }

    async fn slices(&self) -> Result<()> {
        let label = format!("kubernetes.io/service-name={}", self.app);
        self.watch("discovery.k8s.io/v1", "EndpointSlice", &label, |slice| {
            let endpoints = slice["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
            if endpoints.iter().any(|endpoint| endpoint["conditions"]["ready"] == true) {
                self.reached.note(4, self.began);
            }
        })
        .await
    }

    async fn watch(&self, version: &str, kind: &str, label: &str, mut see: impl FnMut(&Value)) -> Result<()> {
        let api = api(&self.client, &self.namespace, version, kind);
        let stream = api.watch(&WatchParams::default().labels(label), "0").await?;
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.try_next().await? {
            if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event {
                see(&as_value(&object)?);
            }
        }
        Ok(())
    }
}

fn as_value(object: &DynamicObject) -> Result<Value> {
    Ok(serde_json::to_value(object)?)
}

/// Waits until a server answers at this address.
async fn answers(address: SocketAddr) {
    while !matches!(timeout(ATTEMPT, ask(address)).await, Ok(Ok(()))) {
        delay(POLL).await;
    }
}

async fn ask(address: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n").await?;
    stream.read_u8().await?;
    Ok(())
}
