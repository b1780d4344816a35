//! The status conditions that a gateway writes on a route object.

use rouse_core::endpoint::ServiceId;

use super::claim_record::HOSTS_CLAIMED;
use super::plan::Findings;
pub use super::status_tracker::{CurrentStatus, StatusAuthor, StatusTracker, Write};
use crate::objects::service_summary::PortFault;

/// The longest message in bytes. Longer ones are cut.
const LONGEST: usize = 2048;
/// The condition that says whether a route serves.
pub(super) const READY: &str = "Ready";
/// The reason of a `Ready` that is true. KEDA's operator has the same, with another message.
pub(super) const RECONCILED: &str = "Reconciled";
/// The messages of a `Ready` that is true.
pub(super) const SERVING: [&str; 2] = ["serving", "the last good version serves"];
/// The reason of the conditions of an invalid route.
pub(super) const INVALID: &str = "Invalid";

/// A status condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `Ready` (or `RouseReady`), `Accepted`, or a problem.
    pub kind: &'static str,
    /// Whether its status is `True`.
    pub holds: bool,
    /// Its reason: one word.
    pub reason: &'static str,
    /// The details.
    pub message: String,
}

/// The conditions of a route object: `Ready` and `Accepted` always, others only while they hold.
pub fn conditions(findings: &Findings) -> Vec<Condition> {
    let mut problems: Vec<Condition> = Vec::new();
    let mut problem = |kind: &'static str, message: String| {
        problems.push(Condition { kind, holds: true, reason: kind, message: cut(message) });
    };
    if !findings.conflicts.is_empty() {
        let all =
            findings.conflicts.iter().map(|conflict| format!("{} is {}", conflict.host, conflict.owner));
        problem("HostConflict", all.collect::<Vec<_>>().join("; "));
    }
    if let Some(fault) = &findings.target {
        problem(port_kind(fault), fault.to_string());
    }
    if let Some(fault) = &findings.fallback {
        problem("BadFallback", fault.to_string());
    }
    if !findings.bodies.is_empty() {
        problem("MissingBody", findings.bodies.join("; "));
    }
    if !findings.tls.is_empty() {
        let all: Vec<&str> = findings.tls.iter().map(String::as_str).collect();
        problem("BadUpstreamTls", all.join("; "));
    }
    if let Some(words) = &findings.unreachable {
        problem("PodsUnreachable", words.clone());
    }
    // Each of these makes the route not ready. The next two do so only if requests are refused because of them; the
    // others never do.
    let serious = !problems.is_empty();
    let mut problem = |kind: &'static str, message: String| {
        problems.push(Condition { kind, holds: true, reason: kind, message: cut(message) });
    };
    if let Some(words) = &findings.no_scale_target {
        problem("NoScaleTarget", words.clone());
    }
    if let Some(words) = findings.start_failure.as_ref().or(findings.wake_failure.as_ref()) {
        problem("WakeFailed", words.clone());
    }
    let ready = ready(findings, problems.first().filter(|_| serious || findings.start_failure.is_some()));
    problems.extend(not_honoured(findings));
    let mut all = vec![ready, accepted(findings)];
    all.extend(problems);
    if !findings.claims.is_empty() {
        let message = findings.claims.to_string();
        all.push(Condition { kind: HOSTS_CLAIMED, holds: true, reason: "Recorded", message });
    }
    all
}

/// Why requests do not go to the `ClusterIP` of a Service, for its owner and the operator.
pub(crate) fn blocked_cluster_ip_text(service: &ServiceId) -> String {
    format!(
        "requests go straight to the pods of Service {service}, regardless of rouse.dev/direct-pod-routing: its EndpointSlices \
         name endpoints that are not pods of its namespace, and its ClusterIP leads there; delete those slices, or have \
         the operator allow manual endpoints"
    )
}

/// The condition that lists the settings of the route's Service that have no effect.
fn not_honoured(findings: &Findings) -> Option<Condition> {
    let direct = (!findings.ignored.is_empty()).then(|| {
        let fields = findings.ignored.join(", ");
        format!("these fields of the Service have no effect while requests go straight to pods: {fields}")
    });
    let unlisted = findings.unlisted.then(|| {
        "the annotation rouse.dev/manual-endpoints of the Service has no effect: the gateway's \
         --manual-endpoints-of does not list this namespace; ask the operator to add it"
            .to_owned()
    });
    let refused = findings.blocked_cluster_ips.iter().map(blocked_cluster_ip_text);
    let refused: Vec<String> = refused.collect();
    let reason = match (refused.as_slice(), &direct) {
        ([_, ..], _) => "RefusedEndpoints",
        ([], Some(_)) => "DirectToPod",
        ([], None) if findings.unlisted => "NotListed",
        ([], None) => "InvalidAnnotation",
    };
    let invalid = findings.invalid_annotations.iter().map(|words| format!("Service: {words}"));
    let all: Vec<String> = refused.into_iter().chain(direct).chain(unlisted).chain(invalid).collect();
    let message = all.join("; ");
    (!all.is_empty()).then_some(Condition { kind: "NotHonoured", holds: true, reason, message })
}

fn port_kind(fault: &PortFault) -> &'static str {
    match fault {
        PortFault::NoService(_) => "NoService",
        PortFault::Faulty(_) => INVALID,
        PortFault::ExternalName(_) => "ExternalName",
        PortFault::BadPort { .. } => "BadPort",
    }
}

fn ready(findings: &Findings, problem: Option<&Condition>) -> Condition {
    let (reason, message) = if !findings.faults.is_empty() && !findings.outdated {
        (INVALID, findings.faults.join("; "))
    } else if let Some(problem) = problem {
        (problem.kind, problem.message.clone())
    } else {
        let [newest, outdated] = SERVING;
        let message = if findings.outdated { outdated } else { newest };
        return Condition { kind: READY, holds: true, reason: RECONCILED, message: message.to_owned() };
    };
    Condition { kind: READY, holds: false, reason, message: cut(message) }
}

fn accepted(findings: &Findings) -> Condition {
    let kind = "Accepted";
    if findings.faults.is_empty() {
        return Condition { kind, holds: true, reason: "Valid", message: "all fields are valid".to_owned() };
    }
    let after = if findings.outdated { "; the last good version serves" } else { "" };
    let message = cut(format!("{}{after}", findings.faults.join("; ")));
    Condition { kind, holds: false, reason: INVALID, message }
}

/// The text, or as much of it as fits into a message.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}
