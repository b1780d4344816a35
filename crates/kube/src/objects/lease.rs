//! `coordination.k8s.io/v1` `Lease` ↔ the record of an election.

use std::time::{Duration, SystemTime};

use rouse_core::lease::{ClaimKind, LeaseClaim, LeaseRecord, SeenLease, VACANT};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{micro_time, null_is_default};

/// No record keeps others waiting for longer than this.
const LONGEST: Duration = Duration::from_mins(10);

/// A `Lease`.
#[derive(Debug, Clone, Deserialize)]
pub struct LeaseObject {
    metadata: LeaseMeta,
    #[serde(default, deserialize_with = "null_is_default")]
    spec: LeaseSpec,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeaseMeta {
    #[serde(default)]
    resource_version: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeaseSpec {
    #[serde(default)]
    holder_identity: Option<String>,
    #[serde(default)]
    lease_duration_seconds: Option<i64>,
    #[serde(default)]
    lease_transitions: Option<i64>,
}

impl LeaseObject {
    /// What it says.
    pub fn seen(&self) -> SeenLease {
        let spec = &self.spec;
        let lease = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0);
        let transitions = spec.lease_transitions.and_then(|count| u32::try_from(count).ok()).unwrap_or(0);
        let holder = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty());
        SeenLease {
            record: LeaseRecord {
                holder: holder.map(Into::into),
                lease: Duration::from_secs(lease).min(LONGEST),
                transitions,
            },
            version: self.metadata.resource_version.as_str().into(),
        }
    }
}

/// The body of a write: a new object, or what is merged into the present one.
pub(crate) fn claim_body(
    name: &str,
    me: &str,
    lease: Duration,
    claim: &LeaseClaim,
    now: SystemTime,
) -> Value {
    let now = micro_time(now);
    let mut spec = json!({ "renewTime": now });
    let mut set = |field: &str, value: Value| {
        if let Some(members) = spec.as_object_mut() {
            members.insert(field.to_owned(), value);
        }
    };
    match claim.kind {
        ClaimKind::Create | ClaimKind::Acquire => {
            let holder = if claim.kind == ClaimKind::Create { VACANT } else { me };
            set("holderIdentity", holder.into());
            set("leaseDurationSeconds", lease.as_secs().into());
            set("acquireTime", now.into());
            set("leaseTransitions", claim.transitions.into());
        }
        ClaimKind::Renew => {}
        ClaimKind::Release => set("holderIdentity", Value::Null),
    }
    match &claim.based_on {
        None => json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": name },
            "spec": spec,
        }),
        Some(version) => json!({ "metadata": { "resourceVersion": &**version }, "spec": spec }),
    }
}
