//! The addresses of the gateways: the ready endpoints of their Service, which Envoys use for services without a ready pod.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::Client;
use rouse_core::endpoint::{Conditions, State};
use rouse_core::slices::SERVICE_NAME;
use rouse_core::time::Clock;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::watch::{Sink, WatchReport};
use crate::client::{ObjectKind, WatchedKind, Watches};
use crate::events::{ClusterEvent, EventSender};
use crate::objects::{Endpoint, EndpointPort, EndpointSlice};
use crate::tasks::{self, TaskEnded};

/// The name of the Service's port for requests.
const PORT: &str = "http";
const WATCHED: [WatchedKind; 1] = [WatchedKind::required(ObjectKind::SLICE)];

/// Where the gateways are found.
#[derive(Clone)]
pub struct GatewayAddressSettings {
    /// The namespace of their Service.
    pub namespace: String,
    /// The name of their Service.
    pub service: String,
    /// The clock of the watch.
    pub clock: Arc<dyn Clock>,
    /// The seed for jitter.
    pub seed: u64,
}

/// Follows the `EndpointSlice`s of the gateways' Service.
pub struct GatewayAddresses {
    settings: GatewayAddressSettings,
    watches: Arc<Watches>,
    by_slice: Mutex<BTreeMap<String, Vec<SocketAddr>>>,
    addresses: watch::Sender<Option<Arc<[SocketAddr]>>>,
    events: EventSender,
}

impl GatewayAddresses {
    /// Watches nothing yet.
    pub fn new(client: Client, settings: GatewayAddressSettings) -> Arc<Self> {
        let namespace = Some(settings.namespace.as_str());
        let watches = Watches::new(client, namespace, &WATCHED, Arc::clone(&settings.clock), settings.seed);
        Arc::new(Self {
            settings,
            watches: Arc::new(watches),
            by_slice: Mutex::default(),
            addresses: watch::Sender::new(None),
            events: EventSender::new(),
        })
    }

    /// The addresses in order, whenever they change. `None` until all have been listed once: without the gateways, services at zero
    /// would have no endpoint.
    pub fn addresses(&self) -> watch::Receiver<Option<Arc<[SocketAddr]>>> {
        self.addresses.subscribe()
    }

    /// What was not listed yet, with the reason.
    pub fn missing(&self) -> Vec<String> {
        self.watches.missing()
    }

    /// The state of the watch.
    pub fn watches(&self) -> Vec<WatchReport> {
        self.watches.reports()
    }

    /// Follows the slices until `cancel`. Call it once.
    pub async fn run(self: Arc<Self>, cancel: CancellationToken) -> Result<(), TaskEnded> {
        let (mut tasks, inner) = (JoinSet::new(), cancel.child_token());
        let label = (SERVICE_NAME, &*self.settings.service);
        let slices = self.watches.labelled(ObjectKind::SLICE, None, label, &Arc::default());
        tasks.spawn(slices.run(SliceSink(Arc::clone(&self)), inner.clone()));
        tasks::run(tasks, inner, cancel).await
    }

    /// Publishes the addresses of all slices, if they have changed.
    fn publish(&self, by_slice: &BTreeMap<String, Vec<SocketAddr>>) {
        let mut all: Vec<SocketAddr> = by_slice.values().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        self.addresses.send_if_modified(|known| {
            let changed = known.as_deref() != Some(&all[..]);
            if changed {
                *known = Some(all.into());
            }
            changed
        });
    }

    fn by_slice(&self) -> MutexGuard<'_, BTreeMap<String, Vec<SocketAddr>>> {
        self.by_slice.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for GatewayAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayAddresses").field("watches", &self.watches()).finish_non_exhaustive()
    }
}

/// Applies the events of the watch.
struct SliceSink(Arc<GatewayAddresses>);

impl Sink for SliceSink {
    type Object = EndpointSlice;

    fn replace(&mut self, all: Vec<EndpointSlice>) {
        let mut by_slice = self.0.by_slice();
        *by_slice = all.iter().map(|slice| (slice.metadata.name.clone(), addresses(slice))).collect();
        self.0.publish(&by_slice);
    }

    fn put(&mut self, slice: EndpointSlice) {
        let mut by_slice = self.0.by_slice();
        by_slice.insert(slice.metadata.name.clone(), addresses(&slice));
        self.0.publish(&by_slice);
    }

    fn remove(&mut self, slice: EndpointSlice) {
        let mut by_slice = self.0.by_slice();
        by_slice.remove(&slice.metadata.name);
        self.0.publish(&by_slice);
    }

    fn unreadable(&mut self, words: String) {
        self.0.events.send(ClusterEvent::LeftOut(words));
    }
}

/// The addresses of the gateways in a slice, at their port for requests: the ready ones, or else those that leave and still serve.
fn addresses(slice: &EndpointSlice) -> Vec<SocketAddr> {
    let is_http = |port: &&EndpointPort| port.name.as_deref() == Some(PORT);
    let Some(port) = slice.ports.iter().find(is_http).and_then(|port| port.port) else { return Vec::new() };
    let best = slice.endpoints.iter().map(state).max().filter(|best| *best >= State::Draining);
    let taking = slice.endpoints.iter().filter(|endpoint| Some(state(endpoint)) == best);
    let ips = taking.filter_map(|endpoint| endpoint.addresses.first()?.parse::<IpAddr>().ok());
    ips.map(|ip| SocketAddr::new(ip, port.get())).collect()
}

fn state(endpoint: &Endpoint) -> State {
    let conditions = endpoint.conditions;
    let (ready, serving, terminating) = (conditions.ready, conditions.serving, conditions.terminating);
    Conditions { ready, serving, terminating }.state()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ready_gateways_count_at_their_port_for_requests() {
        let endpoint =
            |ip: &str, conditions: serde_json::Value| json!({"addresses": [ip], "conditions": conditions});
        let slice = |ports: serde_json::Value| -> EndpointSlice {
            let endpoints = json!([
                endpoint("10.0.0.1", json!({"ready": true})),
                endpoint("10.0.0.2", json!({})),
                endpoint("10.0.0.3", json!({"ready": false})),
                endpoint("10.0.0.4", json!({"ready": false, "serving": true, "terminating": true})),
                endpoint("no address", json!({"ready": true})),
            ]);
            let slice = json!({"metadata": {"name": "a", "namespace": "rouse-system"}, "addressType": "IPv4",
                               "endpoints": endpoints, "ports": ports});
            serde_json::from_value(slice).unwrap()
        };
        let named = slice(json!([{"name": "admin", "port": 9090}, {"name": "http", "port": 8080}]));
        let found: Vec<String> = addresses(&named).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1:8080", "10.0.0.2:8080"]);
        assert_eq!(addresses(&slice(json!([{"name": "https", "port": 8443}]))), []);
        let mut leaving = named.clone();
        leaving.endpoints.retain(|endpoint| state(endpoint) != State::Ready);
        let found: Vec<String> = addresses(&leaving).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.4:8080"]);
    }
}
