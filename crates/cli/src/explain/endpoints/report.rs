//! Builds the report of one service: merges its slices, and makes a row with state and reason for each address.

use std::collections::HashMap;
use std::net::SocketAddr;

use rouse_core::endpoint::{Endpoint, PodUid, PortName, Slice, State};
use rouse_core::envoy::{EnvoyHealth, health_without_gateways};
use rouse_core::merge::{EndpointMerge, MergePolicy};
use rouse_core::snapshot::PortView;
use rouse_core::time::Moment;
use serde::Serialize;

use super::FoundService;
use super::why::{self, Case};

/// A service and its ports. Serialized, it is the JSON of the command.
#[derive(Debug, Serialize)]
pub(super) struct ServiceReport {
    pub(super) service: String,
    #[serde(skip)]
    pub(super) remarks: Vec<String>,
    pub(super) ports: Vec<PortReport>,
}

/// A port and its addresses.
#[derive(Debug, Serialize)]
pub(super) struct PortReport {
    pub(super) port: String,
    pub(super) endpoints: Vec<Row>,
    /// How many endpoints are in each state, the best first. A pod with two addresses counts once.
    #[serde(skip)]
    pub(super) counts: Vec<(usize, State)>,
}

/// An address.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) address: String,
    pub(super) pod: Option<String>,
    #[serde(serialize_with = "state_name")]
    pub(super) state: State,
    pub(super) envoy: Option<&'static str>,
    pub(super) new_traffic: bool,
    pub(super) why: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn state_name<S: serde::Serializer>(state: &State, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state.as_str())
}

impl ServiceReport {
    /// Merges the slices of a service as the gateway would.
    pub(super) fn of(found: FoundService) -> Self {
        let listed = Listed::of(&found.slices);
        // Manual endpoints count here: the report shows what happens if they are allowed.
        let mut merge = EndpointMerge::new(MergePolicy { manual_endpoints: true, ..MergePolicy::default() });
        merge.replace_slices(joined(found.slices), Moment::ZERO);
        let views = merge.view();
        let port = |name: &PortName| {
            let view = views.iter().find(|view| view.name() == name);
            PortReport {
                port: name.to_string(),
                endpoints: view.map(|view| rows(view, &listed)).unwrap_or_default(),
                counts: view.map(counts).unwrap_or_default(),
            }
        };
        let ports = found.ports.iter().map(port).collect();
        Self { service: found.id.to_string(), remarks: found.remarks, ports }
    }
}

/// Joins neighbouring slices with the same ports, which does not change the result. The ledger is made for the hundreds of
/// slices that a service can have; a file can have more.
fn joined(slices: Vec<(String, Slice)>) -> Vec<(String, Slice)> {
    let mut joined: Vec<(String, Slice)> = Vec::new();
    for (name, slice) in slices {
        match joined.last_mut() {
            Some((_, last)) if last.ports == slice.ports => last.endpoints.extend(slice.endpoints),
            _ => joined.push((name, slice)),
        }
    }
    joined
}

fn counts(view: &PortView) -> Vec<(usize, State)> {
    let count = |state: State| view.endpoints().iter().filter(|endpoint| endpoint.state == state).count();
    let counted = State::ALL.into_iter().rev().map(|state| (count(state), state));
    counted.filter(|(count, _)| *count > 0).collect()
}

/// The rows of a port, in the order in which their addresses first appeared.
fn rows(view: &PortView, listed: &Listed) -> Vec<Row> {
    let best = view.best();
    let mut rows: Vec<(usize, Row)> = Vec::new();
    for endpoint in view.endpoints() {
        for address in &endpoint.addresses {
            let entry = listed.get(view.name(), *address);
            let case = Case {
                conditions: endpoint.conditions,
                best,
                has_pod: endpoint.pod.is_some(),
                times: entry.map_or(1, |entry| entry.times),
                one_pod: entry.is_none_or(|entry| entry.one_pod),
            };
            rows.push((entry.map_or(usize::MAX, |entry| entry.first), row(endpoint, *address, &case)));
        }
    }
    rows.sort_by_key(|(first, _)| *first);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn row(endpoint: &Endpoint, address: SocketAddr, case: &Case) -> Row {
    Row {
        address: address.to_string(),
        pod: endpoint.pod.as_ref().map(|pod| pod.name.to_string()),
        state: endpoint.state,
        envoy: health_without_gateways(endpoint.state, case.best).map(EnvoyHealth::as_str),
        new_traffic: endpoint.state.takes_new(case.best),
        why: why::sentence(endpoint.state, case),
    }
}

/// Where each address of each port first appeared, and how often.
#[derive(Debug, Default)]
struct Listed(HashMap<(PortName, SocketAddr), Entry>);

#[derive(Debug)]
struct Entry {
    first: usize,
    times: usize,
    pod: Option<PodUid>,
    /// True if all entries have the same pod UID.
    one_pod: bool,
}

impl Listed {
    fn of(slices: &[(String, Slice)]) -> Self {
        let mut listed = Self::default();
        for (_, slice) in slices {
            for endpoint in &slice.endpoints {
                for port in &slice.ports {
                    let pod = endpoint.pod.as_ref().map(|pod| &pod.uid);
                    let key = (port.name.clone(), SocketAddr::new(endpoint.ip, port.number));
                    let first = listed.0.len();
                    let entry = listed.0.entry(key).or_insert_with(|| Entry {
                        first,
                        times: 0,
                        pod: pod.cloned(),
                        one_pod: pod.is_some(),
                    });
                    entry.times += 1;
                    entry.one_pod &= entry.pod.as_ref() == pod;
                }
            }
        }
        listed
    }

    fn get(&self, port: &PortName, address: SocketAddr) -> Option<&Entry> {
        self.0.get(&(port.clone(), address))
    }
}
