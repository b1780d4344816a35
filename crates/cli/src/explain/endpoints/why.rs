//! The texts that explain an endpoint's state, and the remarks about special kinds of Service.

use rouse_core::endpoint::{Conditions, State};
use rouse_kube::objects::Service;

/// The facts that explain an endpoint's state.
#[derive(Debug)]
pub(super) struct Case {
    /// The conditions as the slice has them.
    pub(super) conditions: Conditions,
    /// The best state at the same port.
    pub(super) best: State,
    /// True if the endpoint belongs to a pod.
    pub(super) has_pod: bool,
    /// How often the address is listed.
    pub(super) times: usize,
    /// True if all of these entries are the same pod.
    pub(super) one_pod: bool,
}

/// The reason for `state`.
pub(super) fn sentence(state: State, case: &Case) -> String {
    let conditions = case.conditions;
    let what = match (state, conditions.is_terminating(), conditions.is_serving()) {
        (State::Ready, false, true) => "Ready",
        (State::Ready, true, true) => "Ready although it is terminating (publishNotReadyAddresses does that)",
        (State::Ready, false, false) => {
            "Ready although it is not serving (publishNotReadyAddresses does that)"
        }
        (State::Ready, true, false) => {
            "Ready although it is terminating and not serving (publishNotReadyAddresses does that)"
        }
        (State::Draining, true, _) => "Terminating but still serving",
        (State::Draining, false, _) => "Not ready but serving",
        (State::Starting, ..) => "Not ready and not serving",
        (State::Gone, ..) => "Terminating and no longer serving",
    };
    let so = match state {
        State::Ready => ": it takes new requests",
        State::Draining if case.best == State::Ready => {
            "; another endpoint is Ready, so it only finishes its work"
        }
        State::Draining => "; no endpoint is Ready, so it still takes new requests",
        State::Starting => ": it gets no traffic yet",
        State::Gone => ": it gets no traffic any more",
    };
    let defaults = defaults(conditions);
    let mut sentence = format!("{what}{so}{defaults}.");
    if case.times > 1 {
        let winner = if case.one_pod { "terminating wins" } else { "the better state wins" };
        sentence = format!("{sentence} The address is listed {} times: {winner}.", case.times);
    }
    if !case.has_pod {
        sentence.push_str(" It has no pod: it counts only where manual endpoints are allowed.");
    }
    sentence
}

/// The conditions that are missing and how they are read; empty if none mattered.
fn defaults(conditions: Conditions) -> String {
    let mut read: Vec<String> = Vec::new();
    if conditions.ready.is_none() {
        read.push("ready is absent, read as true".to_owned());
    }
    if conditions.serving.is_none() && !conditions.is_ready() {
        read.push("serving is absent, read as ready".to_owned());
    }
    if conditions.terminating.is_none() && !conditions.is_ready() {
        read.push("terminating is absent, read as false".to_owned());
    }
    if read.is_empty() { String::new() } else { format!(" ({})", read.join("; ")) }
}

/// Remarks about the kind of the Service.
pub(super) fn remarks(service: &Service) -> Vec<String> {
    let spec = &service.spec;
    let mut remarks = Vec::new();
    if service.is_external_name() {
        remarks.push("ExternalName Service: routes to it are refused.".to_owned());
        return remarks;
    }
    if service.is_headless() {
        remarks.push(
            "Headless Service: a route to a port that no endpoint offers gets 502 bad_port.".to_owned(),
        );
    }
    if spec.selector.is_empty() {
        let allowed =
            service.metadata.annotations.get("rouse.dev/manual-endpoints").is_some_and(|v| v == "allow");
        remarks.push(if allowed {
            "No selector: its endpoints count as manual, which rouse.dev/manual-endpoints allows where the gateway's \
             --manual-endpoints-of lists the namespace."
                .to_owned()
        } else {
            "No selector: its endpoints count as manual, and get traffic only if you allow it \
             (annotation rouse.dev/manual-endpoints: allow, and the gateway's --manual-endpoints-of)."
                .to_owned()
        });
    }
    let ignored = [
        ("sessionAffinity", spec.session_affinity.as_deref(), "None"),
        ("internalTrafficPolicy", spec.internal_traffic_policy.as_deref(), "Cluster"),
        ("trafficDistribution", spec.traffic_distribution.as_deref(), ""),
    ];
    for (field, value, default) in ignored {
        if let Some(value) = value.filter(|value| *value != default) {
            remarks.push(format!("{field}: {value} is not honoured when requests go straight to pods."));
        }
    }
    remarks
}
