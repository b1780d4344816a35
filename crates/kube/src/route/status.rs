//! What the owner of a route object is told on it, and when there is something new to tell.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::plan::Findings;
use super::spec::{RouteKey, RouteKind};
use crate::service::PortFault;

/// Who writes these conditions.
pub const MANAGER: &str = "rouse-gateway";
/// Longer messages are cut.
const LONGEST: usize = 2048;
/// `HTTPScaledObject`s allow only conditions of certain types, so ours is told from others by its message.
const OURS: &str = "Rouse: ";

/// A status condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `Ready`, `Accepted`, or something that is the matter.
    pub kind: &'static str,
    /// Whether it is so.
    pub holds: bool,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, in words.
    pub message: String,
}

/// The conditions of a route object: `Ready` and `Accepted` always, others only while they hold.
pub fn conditions(findings: &Findings) -> Vec<Condition> {
    let mut matters: Vec<Condition> = Vec::new();
    let mut matter = |kind: &'static str, message: String| {
        matters.push(Condition { kind, holds: true, reason: kind, message: cut(message) });
    };
    if !findings.conflicts.is_empty() {
        let all =
            findings.conflicts.iter().map(|conflict| format!("{} is {}", conflict.host, conflict.owner));
        matter("HostConflict", all.collect::<Vec<_>>().join("; "));
    }
    if let Some(fault) = &findings.target {
        matter(port_kind(fault), fault.to_string());
    }
    if let Some(fault) = &findings.fallback {
        matter("BadFallback", fault.to_string());
    }
    if !findings.bodies.is_empty() {
        matter("MissingBody", findings.bodies.join("; "));
    }
    if !findings.tls.is_empty() {
        let all: Vec<&str> = findings.tls.iter().map(String::as_str).collect();
        matter("BadUpstreamTls", all.join("; "));
    }
    // So far each keeps requests from what their route promises; the rest does not.
    let ready = first_matter(findings, &matters);
    if let Some(words) = &findings.no_scale_target {
        matters.push(Condition {
            kind: "NoScaleTarget",
            holds: true,
            reason: "NoScaleTarget",
            message: cut(words.clone()),
        });
    }
    if let Some(words) = &findings.wake_failure {
        matters.push(Condition {
            kind: "WakeFailed",
            holds: true,
            reason: "WakeFailed",
            message: cut(words.clone()),
        });
    }
    if !findings.ignored.is_empty() {
        let message =
            format!("not honoured while requests go directly to pods: {}", findings.ignored.join(", "));
        matters.push(Condition { kind: "NotHonoured", holds: true, reason: "DirectToPod", message });
    }
    let mut all = vec![ready, accepted(findings)];
    all.extend(matters);
    all
}

fn port_kind(fault: &PortFault) -> &'static str {
    match fault {
        PortFault::NoService(_) => "NoService",
        PortFault::ExternalName(_) => "ExternalName",
        PortFault::BadPort { .. } => "BadPort",
    }
}

fn first_matter(findings: &Findings, matters: &[Condition]) -> Condition {
    let (reason, message) = if !findings.faults.is_empty() && !findings.outdated {
        ("Invalid", findings.faults.join("; "))
    } else if let Some(matter) = matters.first() {
        (matter.kind, matter.message.clone())
    } else {
        let message = if findings.outdated { "the last good version serves" } else { "serving" };
        return Condition { kind: "Ready", holds: true, reason: "Reconciled", message: message.to_owned() };
    };
    Condition { kind: "Ready", holds: false, reason, message: cut(message) }
}

fn accepted(findings: &Findings) -> Condition {
    let kind = "Accepted";
    if findings.faults.is_empty() {
        return Condition {
            kind,
            holds: true,
            reason: "Valid",
            message: "every field is understood".to_owned(),
        };
    }
    let after = if findings.outdated { "; the last good version serves" } else { "" };
    let message = cut(format!("{}{after}", findings.faults.join("; ")));
    Condition { kind, holds: false, reason: "Invalid", message }
}

fn cut(mut text: String) -> String {
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// What was written last, so that nothing is written twice and nobody is argued with.
#[derive(Debug, Default)]
pub struct Statuses {
    written: HashMap<RouteKey, Written>,
}

/// What was last written on an object.
#[derive(Debug, PartialEq, Eq)]
struct Written {
    uid: String,
    generation: Option<i64>,
    conditions: Vec<Condition>,
}

/// A status to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Of which object.
    pub key: RouteKey,
    /// The body of the patch: applied to an `InterceptorRoute`, merged into an `HTTPScaledObject`.
    pub patch: Value,
}

impl Statuses {
    /// What to write for an object whose conditions the API server has as `present`; `None` if nothing is new.
    ///
    /// What was written once is not written again if somebody else changes it: two who disagree would write for ever.
    pub fn due(
        &mut self,
        key: &RouteKey,
        (uid, generation): (&str, Option<i64>),
        desired: Vec<Condition>,
        present: &[Value],
        now: &str,
    ) -> Option<Write> {
        // Also for a new generation: whoever made it waits to read that it was seen.
        let said = Written { uid: uid.to_owned(), generation, conditions: desired };
        let before = self.written.insert(key.clone(), said).filter(|before| before.uid == uid);
        let said = self.written.get(key)?;
        if before.as_ref() == Some(said) {
            return None;
        }
        let patch = match key.kind {
            RouteKind::InterceptorRoute => applied(key, said, present, now),
            RouteKind::HttpScaledObject => merged(&said.conditions, present, now)?,
        };
        let in_place = before.is_none() && same(key.kind, said, present, &patch);
        (!in_place).then(|| Write { key: key.clone(), patch })
    }

    /// The write did not succeed: it is due again.
    pub fn failed(&mut self, key: &RouteKey) {
        self.written.remove(key);
    }

    /// Forgets objects that are gone.
    pub fn retain(&mut self, mut exists: impl FnMut(&RouteKey) -> bool) {
        self.written.retain(|key, _| exists(key));
    }
}

/// Whether `present` already says what we would write.
fn same(kind: RouteKind, said: &Written, present: &[Value], write: &Value) -> bool {
    let text =
        |value: &Value, field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let says = |condition: &Condition| {
        let mut there = present.iter().filter(|value| text(value, "type") == condition.kind);
        there.any(|value| {
            text(value, "status") == truth(condition.holds)
                && text(value, "reason") == condition.reason
                && text(value, "message") == condition.message
                && value.get("observedGeneration").and_then(Value::as_i64) == said.generation
        })
    };
    match kind {
        RouteKind::InterceptorRoute => {
            let ours = present.iter().filter(|value| KINDS.contains(&text(value, "type").as_str()));
            ours.count() == said.conditions.len() && said.conditions.iter().all(says)
        }
        RouteKind::HttpScaledObject => {
            let conditions = write.pointer("/status/conditions").and_then(Value::as_array);
            let strip = |values: &[Value]| -> Vec<(String, String, String)> {
                values
                    .iter()
                    .map(|value| (text(value, "type"), text(value, "status"), text(value, "message")))
                    .collect()
            };
            conditions.is_some_and(|conditions| strip(conditions) == strip(present))
        }
    }
}

/// Every kind of condition that we write.
const KINDS: [&str; 12] = [
    "Ready",
    "Accepted",
    "HostConflict",
    "NoService",
    "ExternalName",
    "BadPort",
    "BadFallback",
    "MissingBody",
    "BadUpstreamTls",
    "NoScaleTarget",
    "WakeFailed",
    "NotHonoured",
];

fn truth(holds: bool) -> &'static str {
    if holds { "True" } else { "False" }
}

/// For server-side apply: it takes away what we said before and do not say any more, and leaves what others say.
fn applied(key: &RouteKey, said: &Written, present: &[Value], now: &str) -> Value {
    let condition = |condition: &Condition| {
        let unchanged = present.iter().find(|value| {
            value.get("type").and_then(Value::as_str) == Some(condition.kind)
                && value.get("status").and_then(Value::as_str) == Some(truth(condition.holds))
        });
        // It says when the status changed, not when it was written.
        let since = unchanged.and_then(|value| value.get("lastTransitionTime")).and_then(Value::as_str);
        let mut value = json!({
            "type": condition.kind,
            "status": truth(condition.holds),
            "reason": condition.reason,
            "message": condition.message,
            "lastTransitionTime": since.unwrap_or(now),
        });
        if let (Some(generation), Some(members)) = (said.generation, value.as_object_mut()) {
            members.insert("observedGeneration".to_owned(), generation.into());
        }
        value
    };
    let conditions: Vec<Value> = said.conditions.iter().map(condition).collect();
    json!({
        "apiVersion": "http.keda.sh/v1beta1",
        "kind": "InterceptorRoute",
        "metadata": { "name": &*key.name },
        "status": { "conditions": conditions },
    })
}

/// `HTTPScaledObject`'s conditions are few: ours is one, only while something is wrong or was, beside what KEDA's
/// operator wrote. It is `Ready` unless KEDA has that already, of which there may be one only.
fn merged(desired: &[Condition], present: &[Value], now: &str) -> Option<Value> {
    let message = |value: &Value| value.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    let ours = |value: &Value| message(value).starts_with(OURS);
    let wrong: Vec<&str> = desired
        .iter()
        .filter(|condition| is_trouble(condition))
        .map(|condition| &*condition.message)
        .collect();
    if wrong.is_empty() && !present.iter().any(ours) {
        return None;
    }
    let ready = desired.iter().find(|condition| condition.kind == "Ready");
    let (holds, reason) = ready.map_or((true, "Reconciled"), |ready| (ready.holds, ready.reason));
    let words = if wrong.is_empty() { "serving".to_owned() } else { wrong.join("; ") };
    let mut conditions: Vec<Value> = present.iter().filter(|value| !ours(value)).cloned().collect();
    let taken = conditions.iter().any(|value| value.get("type").and_then(Value::as_str) == Some("Ready"));
    // Older definitions have a timestamp, newer ones the time of the transition; each drops the other's.
    conditions.push(json!({
        "type": if taken { "RouseReady" } else { "Ready" },
        "status": truth(holds),
        "reason": reason,
        "message": cut(format!("{OURS}{words}")),
        "timestamp": now,
        "lastTransitionTime": now,
    }));
    Some(json!({ "status": { "conditions": conditions } }))
}

/// Whether a condition is worth a word where there is room for one only.
fn is_trouble(condition: &Condition) -> bool {
    match condition.kind {
        "Ready" => false,
        "Accepted" => !condition.holds,
        _ => true,
    }
}
