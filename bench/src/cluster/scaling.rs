//! Scaling with many services: what idle ones cost a controller and a gateway, the time from a held request to the accepted
//! write of the scale, and what the reports of busy ones cost a controller.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::objects::{self, api, apply};
use super::simulated_gateways::{self, ReporterFiles};
use super::{Gateway, PATIENCE, client, runtime};
use crate::args::{ClusterScaling, Format};
use crate::certificate::{self, Certificate};
use crate::child::Running;
use crate::clock::{Stopwatch, delay};
use crate::rouse::binary;
use crate::stats::percentile;
use crate::{Result, proc};

pub(super) const NAMESPACE: &str = "bench-scaling";
/// The gateways that report the load of the busy services.
const GATEWAYS: u32 = 3;
/// Services that are written concurrently.
const AT_ONCE: usize = 32;
/// Progress is printed after this many services.
const TOLD: u32 = 2_000;
/// The pause between two wakes: the default budget of a namespace is 10 a second.
const WAKE_PAUSE: Duration = Duration::from_millis(110);
/// After start-up work of this length, idle processes have nothing left to do.
const SETTLE: Duration = Duration::from_secs(10);

/// Below this share of a core, in percent, nothing of the start is left to do.
const SETTLED: f64 = 5.0;
/// How often is looked whether that is so.
const SETTLE_ROUNDS: u32 = 40;

/// What one process did over a while.
struct Cost {
    /// The share of one core, in percent.
    cpu: f64,
    /// Resident, in MiB.
    memory: f64,
}

/// Measures and prints.
pub(crate) fn run(ask: &ClusterScaling) -> Result<()> {
    let binary = binary(ask.common.rouse.as_deref())?;
    let runtime = runtime()?;
    let folder = TempDir::new()?;
    let files = certificate::make("localhost", folder.path())?;
    let client = runtime.block_on(client(&ask.kubeconfig))?;
    eprintln!("writing {} services, {} of them with a pod", ask.services, ask.busy);
    runtime.block_on(write(&client, ask))?;
    let gateways = runtime.block_on(simulated_gateways::write(&client, GATEWAYS, folder.path()))?;
    let (controller, reports) = start_controller(&binary, ask, &files)?;
    let url = format!("https://localhost:{}", reports.port());

    let first = gateways.first().ok_or("no gateway")?;
    let gateway = start_gateway(&binary, ask, &url, &files, first)?;
    eprintln!("idle for {} s", ask.seconds);
    let pids = [controller.pid(), gateway.running.pid()];
    let idle = runtime.block_on(async {
        settled(pids).await?;
        cost(pids, ask.seconds).await
    })?;
    eprintln!("waking {} services", ask.wakes);
    let wakes = runtime.block_on(wakes(&client, ask, gateway.address))?;
    drop(gateway);

    eprintln!("{} busy services at {GATEWAYS} gateways for {} s", ask.busy, ask.seconds);
    let busy = runtime.block_on(async {
        let _reporting = simulated_gateways::report(&gateways, &url, &files.cert, ask.busy)?;
        delay(SETTLE).await;
        cost([controller.pid()], ask.seconds).await
    })?;
    drop(controller);
    print(ask, &idle, &wakes, &busy);
    eprintln!("removing everything");
    runtime.block_on(objects::remove_namespace(&client, NAMESPACE))
}

fn start_controller(
    binary: &Path,
    ask: &ClusterScaling,
    files: &Certificate,
) -> Result<(Running, SocketAddr)> {
    let mut command = Command::new(binary);
    command.arg("controller").arg("--kubeconfig").arg(&ask.kubeconfig);
    command.args(["--pod-namespace", NAMESPACE, "--watch-namespace", NAMESPACE, "--autoscale-default", "on"]);
    command.args(["--admin", "127.0.0.1:0", "--report-listen", "127.0.0.1:0"]);
    command.arg("--report-tls-cert").arg(&files.cert).arg("--report-tls-key").arg(&files.key);
    let mut running = Running::start("rouse controller", &mut command)?;
    let reports = running.until("takes reports", PATIENCE, |running| {
        let lines = running.lines();
        lines.iter().find_map(|line| line.split_once("load reports on https://")?.1.trim().parse().ok())
    })?;
    Ok((running, reports))
}

fn start_gateway(
    binary: &Path,
    ask: &ClusterScaling,
    url: &str,
    files: &Certificate,
    reporter: &ReporterFiles,
) -> Result<Gateway> {
    let (ca, token) = (files.cert.display().to_string(), reporter.token.display().to_string());
    let flags =
        ["--watch-namespace", NAMESPACE, "--report-to", url, "--report-ca", &ca, "--report-token", &token];
    Gateway::start(binary, &ask.kubeconfig, &flags)
}

/// Waits until the work of the start is done: the gateway writes the status of each route once, within a rate.
async fn settled<const N: usize>(pids: [u32; N]) -> Result<()> {
    for _ in 0..SETTLE_ROUNDS {
        delay(SETTLE).await;
        if cost(pids, 2).await?.iter().all(|cost| cost.cpu < SETTLED) {
            return Ok(());
        }
    }
    eprintln!("the processes are not idle after {SETTLE_ROUNDS} rounds of {SETTLE:?}");
    Ok(())
}

/// What these processes cost over `seconds`.
async fn cost<const N: usize>(pids: [u32; N], seconds: u32) -> Result<[Cost; N]> {
    let before = pids.map(|pid| proc::time_of(&[pid]));
    let began = Stopwatch::start();
    delay(Duration::from_secs(seconds.into())).await;
    let took = began.elapsed().as_secs_f64();
    let mut all = Vec::new();
    for (pid, before) in pids.into_iter().zip(before) {
        let cpu = proc::time_of(&[pid]).since(before).micros() / took / 1e6 * 100.0;
        all.push(Cost { cpu, memory: proc::memory(pid)?.0 });
    }
    all.try_into().map_err(|_| "a cost for each process".into())
}

/// Wakes idle services, one after the other. Returns the milliseconds from each request to the accepted write of the scale, as a
/// separate watch sees it.
async fn wakes(client: &Client, ask: &ClusterScaling, gateway: SocketAddr) -> Result<Vec<f64>> {
    let (told, mut events) = mpsc::channel(1024);
    let began = Stopwatch::start();
    let deployments = api(client, NAMESPACE, "apps/v1", "Deployment");
    let now = deployments.list(&ListParams::default().limit(1)).await?;
    let version = now.metadata.resource_version.unwrap_or_default();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let Ok(stream) = deployments.watch(&WatchParams::default(), &version).await else { return };
        let mut stream = std::pin::pin!(stream);
        while let Ok(Some(event)) = stream.try_next().await {
            let at = began.elapsed();
            if let WatchEvent::Modified(object) = event
                && object.data["spec"]["replicas"] == 1
                && told.send((object.metadata.name.unwrap_or_default(), at)).await.is_err()
            {
                return;
            }
        }
    });
    let mut delays = Vec::new();
    for number in (ask.busy..ask.services).take(ask.wakes as usize) {
        let name = name(number);
        let mut stream = TcpStream::connect(gateway).await?;
        let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", host(number));
        let sent = began.elapsed();
        stream.write_all(request.as_bytes()).await?;
        let scaled = async {
            while let Some((scaled, at)) = events.recv().await {
                if scaled == name {
                    return Ok(at);
                }
            }
            Err::<_, crate::Error>("the watch has ended".into())
        };
        let at = tokio::time::timeout(PATIENCE, scaled).await??;
        delays.push(at.saturating_sub(sent).as_secs_f64() * 1000.0);
        drop(stream);
        delay(WAKE_PAUSE).await;
    }
    Ok(delays)
}

/// The name of a service, its Deployment and its route.
pub(super) fn name(number: u32) -> String {
    format!("s{number}")
}

fn host(number: u32) -> String {
    format!("s{number}.test")
}

/// Writes the services, each with a Deployment and a route. The busy ones have a pod and keep it.
async fn write(client: &Client, ask: &ClusterScaling) -> Result<()> {
    objects::namespace(client, NAMESPACE).await?;
    let all = stream::iter(0..ask.services).map(|number| async move {
        let busy = number < ask.busy;
        apply(client, NAMESPACE, &service(number)).await?;
        apply(client, NAMESPACE, &deployment(number, busy)).await?;
        apply(client, NAMESPACE, &route(number, busy)).await?;
        if busy {
            let status = json!({"status": {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}});
            let deployments = api(client, NAMESPACE, "apps/v1", "Deployment");
            deployments.patch_status(&name(number), &PatchParams::default(), &Patch::Merge(status)).await?;
        }
        if (number + 1).is_multiple_of(TOLD) {
            eprintln!("  {} services", number + 1);
        }
        Ok::<_, crate::Error>(())
    });
    all.buffered(AT_ONCE).try_collect().await
}

fn service(number: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name(number)},
        // Without an address, of which a cluster has only so many.
        "spec": {"clusterIP": "None", "selector": {"app": name(number)}, "ports": [{"name": "http", "port": 80}]},
    })
}

fn deployment(number: u32, busy: bool) -> Value {
    let labels = json!({"app": name(number)});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name(number)},
        "spec": {
            "replicas": u32::from(busy),
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "app", "image": "registry.example/shop/app:1.2.3"}]},
            },
        },
    })
}

fn route(number: u32, busy: bool) -> Value {
    json!({
        "apiVersion": "http.keda.sh/v1beta1", "kind": "InterceptorRoute",
        "metadata": {"name": name(number), "annotations": {"rouse.dev/min": u32::from(busy).to_string()}},
        "spec": {
            "target": {"service": name(number), "port": 80},
            "rules": [{"hosts": [host(number)]}],
            "scalingMetric": {"concurrency": {"targetValue": 100}},
        },
    })
}

fn print(ask: &ClusterScaling, idle: &[Cost; 2], wakes: &[f64], busy: &[Cost; 1]) {
    let at = |percent| percentile(wakes, percent).unwrap_or_default();
    let [controller, gateway] = idle;
    let [reported] = busy;
    if ask.common.output == Format::Json {
        let cost = |cost: &Cost| json!({"cpu_percent": cost.cpu, "rss_mib": cost.memory});
        let all = json!({
            "services": ask.services, "busy": ask.busy, "gateways": GATEWAYS, "seconds": ask.seconds,
            "idle": {"controller": cost(controller), "gateway": cost(gateway)},
            "wake_ms": wakes, "reported": cost(reported),
        });
        println!("{all}");
        return;
    }
    println!("{} services idle: CPU of one core, memory", ask.services);
    for (name, cost) in [("controller", controller), ("gateway", gateway)] {
        println!("  {name}: {:.2} %, {:.0} MiB", cost.cpu, cost.memory);
    }
    println!(
        "from a held request to the accepted write of the scale: {:.1} ms (p99 {:.1}, most {:.1}), of {} (goal: p99 50 ms)",
        at(50),
        at(99),
        at(100),
        wakes.len()
    );
    println!(
        "{} services reported each second by {GATEWAYS} gateways: controller {:.1} % of a core (goal 10 %), {:.0} MiB",
        ask.busy, reported.cpu, reported.memory
    );
}
