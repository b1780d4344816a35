//! When the status conditions of a route object have to be written, and what is written beside those of other writers.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::claim_record::HOSTS_CLAIMED;
use super::status::{Condition, INVALID, READY, RECONCILED, SERVING, cut};
use crate::objects::route::ConditionFormat::{Full, OneMessage};
use crate::objects::route::{RouteKey, RouteKind};

/// The condition that says whether the controller scales the workload of a route.
pub(crate) const AUTOSCALED: &str = "Autoscaled";
/// How its message ends if an HPA or a `ScaledObject` scales the workload.
pub(crate) const ONLY_WAKES: &str = "so Rouse only wakes it";
/// `HTTPScaledObject`s allow only conditions of certain types, so the gateway's own is recognised by its message.
const OURS: &str = "Rouse: ";
/// `Ready`, where another controller writes that.
const ROUSE_READY: &str = "RouseReady";

/// Who writes conditions. Each leaves those of the other alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StatusAuthor {
    /// All of them but one.
    #[default]
    Gateway,
    /// `Autoscaled`.
    Controller,
}

impl StatusAuthor {
    /// The field manager of its conditions.
    pub(super) fn manager(self) -> &'static str {
        match self {
            Self::Gateway => "rouse-gateway",
            Self::Controller => "rouse-controller",
        }
    }
}

/// A route object as the API server has it.
#[derive(Debug, Clone, Copy)]
pub struct CurrentStatus<'a> {
    /// Its UID, which tells objects of the same name apart.
    pub uid: &'a str,
    /// Counts up with each change of the spec.
    pub generation: Option<i64>,
    /// The version that was read. A write is based on it.
    pub version: &'a str,
    /// Its conditions, of the gateway and of others.
    pub conditions: &'a [Value],
}

/// The statuses that were written last, so that none is written twice, and no other writer is overwritten again and again.
#[derive(Debug, Default)]
pub struct StatusTracker {
    author: StatusAuthor,
    written: HashMap<RouteKey, Written>,
}

/// The status that was last written on an object.
#[derive(Debug)]
struct Written {
    uid: String,
    generation: Option<i64>,
    conditions: Vec<Condition>,
    /// The write failed with a conflict: the object was not at this version any more.
    overtaken: Option<String>,
    /// The write was rejected: the CRD of the object does not allow this status.
    refused: bool,
}

/// A status to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The route object.
    pub key: RouteKey,
    /// The version of the object that it is based on.
    pub version: String,
    /// What is merged into the object: all conditions, others' as they were at that version.
    pub patch: Value,
}

impl StatusTracker {
    /// Nothing was written yet.
    pub fn new(author: StatusAuthor) -> Self {
        Self { author, ..Self::default() }
    }

    /// Who writes.
    pub(super) fn author(&self) -> StatusAuthor {
        self.author
    }

    /// What to write on an object; `None` if nothing is new.
    ///
    /// A condition that another writer changes is not written again: two writers that disagree would never stop.
    pub fn due(
        &mut self,
        key: &RouteKey,
        object: CurrentStatus<'_>,
        mut desired: Vec<Condition>,
        now: &str,
    ) -> Option<Write> {
        let before = self.written.get(key).filter(|before| before.uid == object.uid);
        let overtaken = before.and_then(|before| before.overtaken.as_deref());
        // The watch has not seen the newer version yet: a write based on the old one would conflict again.
        if overtaken == Some(object.version) {
            return None;
        }
        if is_taken(key.kind, object) {
            for ready in desired.iter_mut().filter(|condition| condition.kind == READY) {
                ready.kind = ROUSE_READY;
            }
        }
        // A new generation is written even with the same conditions: its author waits for `observedGeneration`.
        let (uid, generation) = (object.uid.to_owned(), object.generation);
        let said = Written { uid, generation, conditions: desired, overtaken: None, refused: false };
        if before.is_some_and(|before| before.is_same(&said)) {
            return None;
        }
        let first = before.is_none() || overtaken.is_some();
        let conditions = all_conditions(self.author, key.kind, &said, object.conditions, now);
        self.written.insert(key.clone(), said);
        let conditions = conditions.filter(|all| !(first && same(key.kind, all, object.conditions)))?;
        let patch = json!({
            "metadata": { "resourceVersion": object.version },
            "status": { "conditions": conditions },
        });
        Some(Write { key: key.clone(), version: object.version.to_owned(), patch })
    }

    /// A write failed: the status is due again.
    pub fn failed(&mut self, key: &RouteKey) {
        self.written.remove(key);
    }

    /// Another writer was faster: the status is due again as soon as the newer version was seen.
    pub fn overtaken(&mut self, write: &Write) {
        if let Some(written) = self.written.get_mut(&write.key) {
            written.overtaken = Some(write.version.clone());
        }
    }

    /// The CRD of the object does not allow the status: it is not written again until it changes.
    pub fn refused(&mut self, key: &RouteKey) {
        if let Some(written) = self.written.get_mut(key) {
            written.refused = true;
        }
    }

    /// Whether the record of claims that was written is not on the object, because it is not seen yet or was removed.
    pub fn lacks_record(&self, key: &RouteKey, object: CurrentStatus<'_>) -> bool {
        let Some(written) = self.written.get(key).filter(|written| written.uid == object.uid) else {
            return false;
        };
        let ours = written.conditions.iter().find(|condition| condition.kind == HOSTS_CLAIMED);
        let present = object.conditions.iter().find(|value| text(value, "type") == HOSTS_CLAIMED);
        let same = ours.map(|ours| &*ours.message) == present.map(|present| text(present, "message"));
        let records = self.author == StatusAuthor::Gateway;
        records && !same && !written.refused && written.overtaken.is_none()
    }

    /// Forgets objects that are gone.
    pub fn retain(&mut self, mut exists: impl FnMut(&RouteKey) -> bool) {
        self.written.retain(|key, _| exists(key));
    }
}

impl Written {
    fn is_same(&self, other: &Self) -> bool {
        (&self.uid, self.generation, &self.conditions, &self.overtaken)
            == (&other.uid, other.generation, &other.conditions, &other.overtaken)
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn observed(value: &Value) -> Option<i64> {
    value.get("observedGeneration").and_then(Value::as_i64)
}

/// Whether the author wrote this condition. Decided by its content, which all replicas, and this one after a restart, read
/// alike. The field managers of the object show only which writer last changed a field.
fn is_of(author: StatusAuthor, route: RouteKind, condition: &Value) -> bool {
    match author {
        StatusAuthor::Gateway => is_gateways(route, condition),
        StatusAuthor::Controller => text(condition, "type") == AUTOSCALED,
    }
}

fn is_gateways(route: RouteKind, condition: &Value) -> bool {
    let (kind, reason, message) =
        (text(condition, "type"), text(condition, "reason"), text(condition, "message"));
    match (route.condition_format(), kind) {
        (_, HOSTS_CLAIMED) => true,
        (OneMessage, _) => message.starts_with(OURS),
        (Full, READY) if reason == RECONCILED => SERVING.contains(&message),
        (Full, READY) => reason == INVALID || KINDS.contains(&reason),
        (Full, kind) => KINDS.contains(&kind),
    }
}

/// Whether another controller writes `Ready`: KEDA's operator does, by its own rules.
fn is_taken(route: RouteKind, object: CurrentStatus<'_>) -> bool {
    let find = |kind: &str, ours: bool| {
        let mut all = object.conditions.iter();
        all.find(|value| text(value, "type") == kind && is_gateways(route, value) == ours)
    };
    let Some(theirs) = find(READY, false) else { return false };
    let seen = (observed(theirs), find(ROUSE_READY, true).and_then(observed), object.generation);
    // The other controller missed a whole generation that the gateway has seen: it does not run any more.
    !matches!(seen, (Some(theirs), Some(ours), Some(now)) if theirs < ours && ours < now)
}

/// Whether the `present` conditions are the same as those to be written.
fn same(route: RouteKind, written: &[Value], present: &[Value]) -> bool {
    let strip = |values: &[Value]| {
        let mut all: Vec<_> = values
            .iter()
            .map(|value| {
                let words = ["type", "status", "message"].map(|field| text(value, field).to_owned());
                // The CRD of `HTTPScaledObject` drops the fields that it does not know.
                let more = route.condition_format() == Full;
                (words, more.then(|| (text(value, "reason").to_owned(), observed(value))))
            })
            .collect();
        all.sort();
        all
    };
    strip(written) == strip(present)
}

/// Every type of condition that the gateway writes, besides `Ready`.
const KINDS: [&str; 14] = [
    HOSTS_CLAIMED,
    ROUSE_READY,
    "Accepted",
    "HostConflict",
    "NoService",
    "ExternalName",
    "BadPort",
    "BadFallback",
    "MissingBody",
    "BadUpstreamTls",
    "PodsUnreachable",
    "NoScaleTarget",
    "WakeFailed",
    "NotHonoured",
];

fn truth(holds: bool) -> &'static str {
    if holds { "True" } else { "False" }
}

/// All conditions of an object: those of others, and the new ones of the author. `None` if there is nothing to write.
fn all_conditions(
    author: StatusAuthor,
    route: RouteKind,
    said: &Written,
    present: &[Value],
    now: &str,
) -> Option<Vec<Value>> {
    let before = || present.iter().filter(|value| is_of(author, route, value));
    let summary;
    let ours = match (author, route.condition_format()) {
        (StatusAuthor::Gateway, OneMessage) => {
            let written = before().any(|value| text(value, "type") != HOSTS_CLAIMED);
            let record = said.conditions.iter().find(|condition| condition.kind == HOSTS_CLAIMED);
            summary =
                summed_up(&said.conditions, written).into_iter().chain(record.cloned()).collect::<Vec<_>>();
            &summary
        }
        (StatusAuthor::Gateway, Full) | (StatusAuthor::Controller, _) => &said.conditions,
    };
    if ours.is_empty() && before().next().is_none() {
        return None;
    }
    let replaced = |value: &Value| {
        is_of(author, route, value) || ours.iter().any(|condition| condition.kind == text(value, "type"))
    };
    let mut all: Vec<Value> = present.iter().filter(|value| !replaced(value)).cloned().collect();
    for condition in ours {
        let status = truth(condition.holds);
        let unchanged = present.iter().find(|value| {
            text(value, "type") == condition.kind
                && text(value, "status") == status
                && is_of(author, route, value)
        });
        // The time at which the status changed, not at which it was written.
        let since = |field: &str| {
            unchanged.map(|value| text(value, field)).filter(|since| !since.is_empty()).unwrap_or(now)
        };
        let mut value = json!({
            "type": condition.kind,
            "status": status,
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": since("lastTransitionTime"),
        });
        if let Some(members) = value.as_object_mut() {
            match (route.condition_format(), said.generation) {
                // Older definitions have a timestamp, newer ones the time of the transition; each drops the other's.
                (OneMessage, _) => {
                    members.insert("timestamp".to_owned(), since("timestamp").into());
                }
                (Full, Some(generation)) => {
                    members.insert("observedGeneration".to_owned(), generation.into());
                }
                (Full, None) => {}
            }
        }
        all.push(value);
    }
    Some(all)
}

/// The one condition that the gateway writes on an `HTTPScaledObject` besides the record of claims: its CRD allows few
/// types of conditions. Written only while something is wrong, or after something was.
fn summed_up(desired: &[Condition], written: bool) -> Option<Condition> {
    let wrong = desired.iter().filter(|condition| is_problem(condition));
    let wrong: Vec<&str> = wrong.map(|condition| &*condition.message).collect();
    if wrong.is_empty() && !written {
        return None;
    }
    let ready = desired.iter().find(|condition| is_ready(condition))?;
    let words = if wrong.is_empty() { "serving".to_owned() } else { wrong.join("; ") };
    Some(Condition { message: cut(format!("{OURS}{words}")), ..ready.clone() })
}

fn is_ready(condition: &Condition) -> bool {
    condition.kind == READY || condition.kind == ROUSE_READY
}

/// Whether a condition belongs in the one message of an `HTTPScaledObject`.
fn is_problem(condition: &Condition) -> bool {
    match condition.kind {
        READY | ROUSE_READY | HOSTS_CLAIMED => false,
        "Accepted" => !condition.holds,
        _ => true,
    }
}
