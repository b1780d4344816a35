//! Runs a real Envoy in front of the apps, with the bootstrap that the product prints. It dials the pods itself, and retries nothing.

use rouse_e2e::command::run;
use rouse_e2e::programs;
use rouse_e2e::rouse::Rouse;
use rouse_e2e::target::Target;
use rouse_testkit::envoy::{Envoy, binary};
use tokio::process::Command;

/// An Envoy in front of the apps of a `rouse up`.
pub(crate) struct EnvoyFront {
    pub(crate) envoy: Envoy,
    /// Where it takes requests.
    pub(crate) target: Target,
}

impl EnvoyFront {
    /// In front of the first app, which was started with `--xds`.
    pub(crate) async fn before(rouse: &Rouse) -> Self {
        let server = rouse.output.find("the address for Envoys", |line| {
            line.split_once("xds for Envoys on ").map(|(_, address)| address.trim().to_owned())
        });
        let server = server.await;
        let mut command = Command::new(programs!().rouse);
        command.args(["xds", "bootstrap", "--server", &server, "--listen", "127.0.0.1:0"]);
        command.args(["--envoy-admin", "127.0.0.1:0"]);
        let printed = run(command).await;
        let envoy =
            Envoy::start_with(&binary().expect("Envoy is installed"), "envoy.yaml", &printed.stdout).await;
        let address = envoy.listener("rouse_static").await;
        Self { envoy, target: Target { address, ..rouse.target(false) } }
    }

    /// How many requests Envoy has sent to each address of a cluster: the gateway's, and those of pods.
    pub(crate) async fn requests(&self, cluster: &str) -> Vec<(std::net::SocketAddr, u64)> {
        let clusters = self.envoy.json("/clusters?format=json").await;
        let all = clusters["cluster_statuses"].as_array().expect("clusters");
        let cluster = all.iter().find(|one| one["name"] == cluster).expect("the cluster");
        let hosts = cluster["host_statuses"].as_array().cloned().unwrap_or_default();
        let host = |host: &serde_json::Value| {
            let socket = &host["address"]["socket_address"];
            let address = format!("{}:{}", socket["address"].as_str()?, socket["port_value"]);
            let stats = host["stats"].as_array()?.iter().find(|one| one["name"] == "rq_total")?;
            let count = stats["value"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default();
            Some((address.parse().ok()?, count))
        };
        hosts.iter().filter_map(host).collect()
    }
}
