//! The addresses of the gateways follow the slices of their Service.

use std::sync::Arc;
use std::time::Duration;

use rouse_core::time::{Clock, Moment};
use rouse_kube::gateway_addresses::{GatewayAddressSettings, GatewayAddresses};
use rouse_testkit::api_server::ApiServer;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::autoscale::rig::OWN;
use crate::rig::SLICES;

/// A slice of ready gateways at 10.0.0.n, with the port of their admin API first.
pub(crate) fn gateways(pods: &[u8]) -> Value {
    slice("gateways", "rouse-gateway", pods)
}

fn slice(name: &str, service: &str, pods: &[u8]) -> Value {
    let endpoint = |n: &u8| json!({"addresses": [format!("10.0.0.{n}")], "conditions": {"ready": true}});
    json!({"metadata": {"name": name, "namespace": OWN, "labels": {"kubernetes.io/service-name": service}},
           "addressType": "IPv4", "ports": [{"name": "admin", "port": 9090}, {"name": "http", "port": 8080}],
           "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>()})
}

struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Moment {
        Moment::ZERO
    }
}

/// Follows the gateways of an API server.
pub(crate) struct Gateways {
    found: Arc<GatewayAddresses>,
    cancel: CancellationToken,
    run: tokio::task::JoinHandle<Result<(), rouse_kube::tasks::TaskEnded>>,
}

impl Gateways {
    pub(crate) fn start(api: &ApiServer) -> Self {
        let settings = GatewayAddressSettings {
            namespace: OWN.to_owned(),
            service: "rouse-gateway".to_owned(),
            clock: Arc::new(Stopped),
            seed: 1,
        };
        let found = GatewayAddresses::new(api.client(), settings);
        let cancel = CancellationToken::new();
        #[expect(clippy::disallowed_methods, reason = "the rig is the owner, and joins it")]
        let run = tokio::spawn(Arc::clone(&found).run(cancel.clone()));
        Self { found, cancel, run }
    }

    /// Waits until exactly these are known.
    pub(crate) async fn until(&self, expected: &[&str]) {
        let mut addresses = self.found.addresses();
        let are_there = |known: &Option<Arc<[std::net::SocketAddr]>>| {
            known
                .as_ref()
                .is_some_and(|known| known.iter().map(ToString::to_string).eq(expected.iter().copied()))
        };
        let found =
            timeout(Duration::from_mins(10), addresses.wait_for(are_there)).await.map(|found| found.is_ok());
        assert_eq!(found, Ok(true), "not {expected:?}: {:?}", self.found.addresses().borrow());
    }

    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        timeout(Duration::from_mins(1), self.run).await.expect("ends").expect("no panic").expect("not early");
    }
}

#[tokio::test(start_paused = true)]
async fn the_gateways_are_those_of_their_service_and_follow_each_change() {
    let api = ApiServer::default();
    api.put(SLICES, gateways(&[2, 1]));
    api.put(SLICES, slice("of-others", "rouse-controller", &[9]));
    let found = Gateways::start(&api);
    assert!(found.found.addresses().borrow().is_none(), "nothing is listed yet");
    found.until(&["10.0.0.1:8080", "10.0.0.2:8080"]).await;
    // A second slice, with an address that the first one has too.
    api.put(SLICES, slice("more", "rouse-gateway", &[2, 3]));
    found.until(&["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.3:8080"]).await;
    api.put(SLICES, gateways(&[2]));
    found.until(&["10.0.0.2:8080", "10.0.0.3:8080"]).await;
    api.delete(SLICES, OWN, "more");
    api.delete(SLICES, OWN, "gateways");
    found.until(&[]).await;
    found.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_gateway_the_list_is_known_to_be_empty() {
    let api = ApiServer::default();
    let found = Gateways::start(&api);
    found.until(&[]).await;
    found.stop().await;
}
