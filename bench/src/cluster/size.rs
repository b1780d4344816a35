//! A large cluster: how long a gateway takes to know it, how much memory that takes, and how long after the API server's
//! word a change has effect.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use rouse_core::endpoint::ServiceId;
use rouse_core::merge::Policy;
use rouse_core::registry::{self, Registry};
use rouse_core::service::Service;
use rouse_kube::cluster::{Cluster, Settings};
use rouse_net::clock::TokioClock;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::objects::{api, apply, namespace, remove_namespace};
use super::{Gateway, PATIENCE, client, runtime};
use crate::args::{ClusterSize, Format};
use crate::clock::{Stopwatch, time_of_day};
use crate::rouse::binary;
use crate::stats::percentile;
use crate::{Result, proc};

const NAMESPACE: &str = "bench-size";
/// Objects that are written at a time.
const AT_ONCE: usize = 16;

/// Measures and prints.
pub(crate) fn run(ask: &ClusterSize) -> Result<()> {
    let binary = binary(ask.common.rouse.as_deref())?;
    let runtime = runtime()?;
    let client = runtime.block_on(client(&ask.kubeconfig))?;
    eprintln!("writing {} services with {} endpoints each", ask.services, ask.endpoints);
    runtime.block_on(fill(&client, ask.services, ask.endpoints))?;
    let gateway = Gateway::start(&binary, &ask.kubeconfig, &["--watch-namespace", NAMESPACE])?;
    let memory = proc::memory(gateway.running.pid())?;
    let synced = gateway.synced;
    drop(gateway);
    eprintln!("changing {} endpoints", ask.changes);
    let delays = runtime.block_on(changes(&client, &ask.kubeconfig, ask))?;
    runtime.block_on(remove_namespace(&client, NAMESPACE))?;
    let at = |percent| percentile(&delays, percent).unwrap_or_default();
    let (median, p99, most) = (at(50), at(99), at(100));
    match ask.common.output {
        Format::Json => {
            let all = json!({
                "services": ask.services, "endpoints": ask.endpoints,
                "synced_ms": synced.as_secs_f64() * 1000.0, "rss_mib": memory,
                "delay_ms": {"p50": median, "p99": p99, "max": most, "count": delays.len()},
            });
            println!("{all}");
        }
        Format::Text => {
            println!("{} services × {} endpoints", ask.services, ask.endpoints);
            println!("  ready after {:.2} s, then {memory:.0} MiB", synced.as_secs_f64());
            println!(
                "  a change is in the snapshot {median:.1} ms (p99 {p99:.1}, most {most:.1}) after the API server's word, \
                 of {}",
                delays.len()
            );
        }
    }
    Ok(())
}

async fn fill(client: &Client, services: u32, endpoints: u32) -> Result<()> {
    namespace(client, NAMESPACE).await?;
    let objects = (0..services).flat_map(|number| [service(number), slice(number, endpoints), route(number)]);
    let writes = stream::iter(objects).map(|object| async move { apply(client, NAMESPACE, &object).await });
    writes.buffer_unordered(AT_ONCE).try_for_each(|_| async { Ok(()) }).await
}

fn service(number: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": format!("s{number}"), "annotations": {"rouse.dev/manual-endpoints": "allow"}},
        "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]},
    })
}

fn slice(number: u32, endpoints: u32) -> Value {
    let endpoint = |place: u32| {
        let [_, a, b, c] = (number * endpoints + place).to_be_bytes();
        json!({"addresses": [format!("10.{a}.{b}.{c}")], "conditions": {"ready": true}})
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": format!("s{number}-x"),
            "labels": {"kubernetes.io/service-name": format!("s{number}")},
        },
        "endpoints": (0..endpoints).map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

fn route(number: u32) -> Value {
    json!({
        "apiVersion": "http.keda.sh/v1beta1", "kind": "InterceptorRoute", "metadata": {"name": format!("s{number}")},
        "spec": {
            "target": {"service": format!("s{number}"), "port": 80},
            "rules": [{"hosts": [format!("s{number}.test")]}],
            "scalingMetric": {"concurrency": {"targetValue": 100}},
        },
    })
}

/// Changes one endpoint after the other, and notes how long after a watch of our own the snapshot has it, in milliseconds.
async fn changes(client: &Client, kubeconfig: &Path, ask: &ClusterSize) -> Result<Vec<f64>> {
    let clock = TokioClock::new();
    let settings = Settings {
        namespace: Some(NAMESPACE.to_owned()),
        write_status: false,
        ..Settings::new(Arc::new(clock), time_of_day, 7)
    };
    let cluster = Cluster::new(super::client(kubeconfig).await?, settings);
    let policy = Policy { manual_endpoints: true, ..Policy::default() };
    let core = registry::Settings { policy, ..registry::Settings::default() };
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
    let slices = api(client, NAMESPACE, "discovery.k8s.io/v1", "EndpointSlice");
    let mut delays = Vec::new();
    for change in 0..ask.changes {
        let number = change % ask.services;
        let id: ServiceId = format!("{NAMESPACE}/s{number}").parse()?;
        let service = registry.get(&id).ok_or("a service is not known")?;
        let ready = change / ask.services % 2 == 1;
        let mut endpoints = slice(number, ask.endpoints)["endpoints"].take();
        endpoints[0]["conditions"]["ready"] = json!(ready);
        let patch = Patch::Merge(json!({"endpoints": endpoints}));
        let seen = snapshot(&service, ready, began);
        let (name, how) = (format!("s{number}-x"), PatchParams::default());
        let written = slices.patch(&name, &how, &patch);
        let heard = async {
            while let Some((slice, at)) = events.recv().await {
                if slice == name {
                    return Ok(at);
                }
            }
            Err("the watch of our own has ended".into())
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

/// When the first endpoint is as it should be.
async fn snapshot(service: &Service, ready: bool, began: Stopwatch) -> Duration {
    use rouse_core::endpoint::State;
    let mut snapshots = service.subscribe();
    loop {
        let snapshot = snapshots.changed().await;
        let first = snapshot.ports.first().and_then(|port| port.endpoints().first());
        if first.is_some_and(|first| (first.state == State::Ready) == ready) {
            return began.elapsed();
        }
    }
}

/// Tells of every slice that changes, with the time.
async fn watch(client: &Client, began: Stopwatch, told: &mpsc::Sender<(String, Duration)>) -> Result<()> {
    let slices = api(client, NAMESPACE, "discovery.k8s.io/v1", "EndpointSlice");
    let now = slices.list(&kube::api::ListParams::default().limit(1)).await?;
    let version = now.metadata.resource_version.unwrap_or_default();
    let stream = slices.watch(&WatchParams::default(), &version).await?;
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.try_next().await? {
        if let WatchEvent::Modified(slice) = event {
            let at = began.elapsed();
            told.send((slice.metadata.name.unwrap_or_default(), at)).await?;
        }
    }
    Ok(())
}
