//! Benchmarks on a real Kubernetes cluster: cold starts, a gateway on a large cluster, scaling, and the
//! controller of `EndpointSlice`s. `e2e/cluster/bench` brings the clusters up.

pub(crate) mod cold_start;
mod large;
mod objects;
mod phases;
mod push;
pub(crate) mod scaling;
mod simulated_gateways;
pub(crate) mod size;
pub(crate) mod slices;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::runtime::Runtime;

use crate::Result;
use crate::child::Running;
use crate::clock::Stopwatch;

/// Long enough for a busy machine; a working product needs far less.
const PATIENCE: Duration = Duration::from_mins(3);

/// A running `rouse gateway`.
#[derive(Debug)]
struct Gateway {
    running: Running,
    address: SocketAddr,
    /// From its start until it accepted requests.
    synced: Duration,
}

impl Gateway {
    /// Starts it and waits until it is ready.
    fn start(binary: &Path, kubeconfig: &Path, flags: &[&str]) -> Result<Self> {
        let mut command = Command::new(binary);
        command.arg("gateway").arg("--kubeconfig").arg(kubeconfig).args(flags);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shutdown-delay", "0s"]);
        let began = Stopwatch::start();
        let mut running = Running::start("rouse gateway", &mut command)?;
        let address = running.until("is ready", PATIENCE, |running| {
            let lines = running.lines();
            lines.iter().find(|line| line.contains("ready: "))?;
            lines.iter().find_map(|line| line.split_once("listening on http://")?.1.parse().ok())
        })?;
        Ok(Self { running, address, synced: began.elapsed() })
    }
}

fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

async fn client(kubeconfig: &Path) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}
