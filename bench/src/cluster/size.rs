//! A gateway on a large cluster: the time until it is ready, its memory, and the delay from a watch event to the snapshot.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use kube::Client;
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use rouse_core::endpoint::ServiceId;
use rouse_core::merge::MergePolicy;
use rouse_core::registry::{self, Registry};
use rouse_core::service::Service;
use rouse_core::snapshot::PortView;
use rouse_kube::cluster::{Cluster, ClusterSettings};
use rouse_net::clock::TokioClock;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::large::{Large, name, slice_name};
use super::objects::{api, remove_namespace};
use super::{Gateway, PATIENCE, client, runtime};
use crate::args::{ClusterSize, Format};
use crate::clock::{Stopwatch, time_of_day};
use crate::rouse::binary;
use crate::stats::percentile;
use crate::{Result, proc};

const NAMESPACE: &str = "bench-size";
/// The goal for the time until the gateway accepts requests.
const READY_GOAL: Duration = Duration::from_secs(10);
/// The goal for its resident memory then, in MB.
const MEMORY_GOAL: f64 = 120.0;
/// The goal for the p99 of the delay of a change, in milliseconds.
const DELAY_GOAL: f64 = 50.0;

/// Measures and prints. A missed goal is an error.
pub(crate) fn run(ask: &ClusterSize) -> Result<()> {
    let binary = binary(ask.common.rouse.as_deref())?;
    let runtime = runtime()?;
    let client = runtime.block_on(client(&ask.kubeconfig))?;
    let ClusterSize { services, endpoints, .. } = *ask;
    eprintln!("writing {services} services with {endpoints} pods each");
    let large = runtime.block_on(Large::write(&client, NAMESPACE, services, endpoints))?;
    let mut gateway = Gateway::start(&binary, &ask.kubeconfig, &["--watch-namespace", NAMESPACE])?;
    // It may accept requests before it has read all pods, which take the most memory.
    gateway.running.until("follows pods", PATIENCE, |running| {
        running.lines().iter().any(|line| line.contains("following Pod")).then_some(())
    })?;
    let (memory, peak) = proc::memory(gateway.running.pid())?;
    let synced = gateway.synced;
    drop(gateway);
    eprintln!("changing {} endpoints", ask.changes);
    let delays = runtime.block_on(changes(&client, &large, ask))?;
    let at = |percent| percentile(&delays, percent).unwrap_or_default();
    let (median, p99, most) = (at(50), at(99), at(100));
    let goals = [
        ("ready within 10 s", synced < READY_GOAL),
        ("RSS below 120 MB", memory * 1.024 * 1.024 < MEMORY_GOAL),
        ("p99 of changes below 50 ms", p99 < DELAY_GOAL),
    ];
    match ask.common.output {
        Format::Json => {
            let all = json!({
                "services": services, "pods": services * endpoints,
                "synced_ms": synced.as_secs_f64() * 1000.0, "rss_mib": memory, "peak_rss_mib": peak,
                "delay_ms": {"p50": median, "p99": p99, "max": most, "count": delays.len()},
                "goals": goals.map(|(goal, met)| json!({"goal": goal, "met": met})),
            });
            println!("{all}");
        }
        Format::Text => {
            println!("{services} services × {endpoints} pods");
            println!(
                "  ready after {:.2} s, then {memory:.0} MiB resident (peak {peak:.0})",
                synced.as_secs_f64()
            );
            println!(
                "  a change is in the snapshot {median:.1} ms (p99 {p99:.1}, most {most:.1}) after the API server's word, \
                 of {}",
                delays.len()
            );
            for (goal, met) in goals {
                println!("  {goal}: {}", if met { "met" } else { "MISSED" });
            }
        }
    }
    eprintln!("removing everything");
    runtime.block_on(remove_namespace(&client, NAMESPACE))?;
    let missed: Vec<&str> = goals.iter().filter(|(_, met)| !met).map(|(goal, _)| *goal).collect();
    if missed.is_empty() { Ok(()) } else { Err(format!("missed: {}", missed.join(", ")).into()) }
}

/// Changes one endpoint after the other. Measures the time from the event on a separate watch to the snapshot, in ms.
async fn changes(client: &Client, large: &Large, ask: &ClusterSize) -> Result<Vec<f64>> {
    let clock = TokioClock::new();
    let mut settings = ClusterSettings::new(Arc::new(clock), time_of_day, 7);
    settings.namespace = Some(NAMESPACE.to_owned());
    settings.routes.write_status = false;
    let cluster = Cluster::new(super::client(&ask.kubeconfig).await?, settings);
    let policy = MergePolicy { manual_endpoints: true, ..MergePolicy::default() };
    let core = registry::RegistrySettings { policy, ..registry::RegistrySettings::default() };
    let registry = Registry::new(core, Arc::new(clock), Arc::clone(&cluster) as _);
    let (cancel, mut tasks) = (CancellationToken::new(), JoinSet::new());
    tasks.spawn(Arc::clone(&cluster).run(Arc::clone(&registry), cancel.clone()));
    cluster.synced().await;
    let began = Stopwatch::start();
    let (told, mut events) = mpsc::channel(64);
    let watching = client.clone();
    tasks.spawn(async move {
        watch(&watching, began, &told).await.ok();
        Ok(())
    });
    // Wait for the watch: it would miss earlier changes.
    events.recv().await.ok_or("the separate watch did not start")?;
    let slices = api(client, NAMESPACE, "discovery.k8s.io/v1", "EndpointSlice");
    let mut delays = Vec::new();
    for change in 0..ask.changes {
        let number = change % ask.services;
        let id: ServiceId = format!("{NAMESPACE}/{}", name(number)).parse()?;
        let service = registry.get(&id).ok_or("a service is not known")?;
        let ready = change / ask.services % 2 == 1;
        let mut endpoints = large.endpoints(number);
        let first = endpoints.first_mut().ok_or("a service without pods")?;
        first["conditions"] = json!({"ready": ready, "serving": ready, "terminating": false});
        let patch = Patch::Merge(json!({"endpoints": endpoints}));
        let wanted = endpoints.len() - usize::from(!ready);
        let seen = snapshot(&service, wanted, began);
        let (name, how) = (slice_name(number), PatchParams::default());
        let written = slices.patch(&name, &how, &patch);
        let heard = async {
            while let Some((slice, at)) = events.recv().await {
                if slice == name {
                    return Ok(at);
                }
            }
            Err("the separate watch has ended".into())
        };
        let all = async { tokio::join!(written, heard, seen) };
        let (written, heard, seen): (_, Result<Duration>, Duration) =
            tokio::time::timeout(PATIENCE, all).await?;
        written?;
        delays.push((seen.as_secs_f64() - heard?.as_secs_f64()).max(0.0) * 1000.0);
    }
    cancel.cancel();
    Ok(delays)
}

/// Waits until `wanted` endpoints are ready. Returns the time of that.
async fn snapshot(service: &Service, wanted: usize, began: Stopwatch) -> Duration {
    use rouse_core::endpoint::State;
    let mut snapshots = service.subscribe();
    loop {
        let snapshot = snapshots.changed().await;
        let endpoints = snapshot.ports.first().map(PortView::endpoints).unwrap_or_default();
        if endpoints.iter().filter(|endpoint| endpoint.state == State::Ready).count() == wanted {
            return began.elapsed();
        }
    }
}

/// Reports that it watches, and then every changed slice, with the time.
async fn watch(client: &Client, began: Stopwatch, told: &mpsc::Sender<(String, Duration)>) -> Result<()> {
    let slices = api(client, NAMESPACE, "discovery.k8s.io/v1", "EndpointSlice");
    let now = slices.list(&kube::api::ListParams::default().limit(1)).await?;
    let version = now.metadata.resource_version.unwrap_or_default();
    let stream = slices.watch(&WatchParams::default(), &version).await?;
    told.send((String::new(), began.elapsed())).await?;
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.try_next().await? {
        if let WatchEvent::Modified(slice) = event {
            let at = began.elapsed();
            told.send((slice.metadata.name.unwrap_or_default(), at)).await?;
        }
    }
    Ok(())
}
