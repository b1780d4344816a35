//! Runs a real Envoy in front of the apps, with the bootstrap that the product prints. It dials the pods itself, and retries nothing.

use rouse_e2e::command::run;
use rouse_e2e::programs;
use rouse_e2e::rouse::Rouse;
use rouse_e2e::target::Target;
use rouse_testkit::envoy::{Envoy, binary};
use tokio::process::Command;

/// An Envoy in front of the apps of a `rouse up`.
pub(crate) struct EnvoyFront {
    _envoy: Envoy,
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
        Self { _envoy: envoy, target: Target { address, ..rouse.target(false) } }
    }
}
