//! The controller of `EndpointSlice`s and one service with many pods: the time of the first sync, then the delay, the writes
//! and the CPU time of each change. Kubernetes' own controller does the same work for a Service with a selector.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use kube::Client;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::objects::{self, api, apply};
use super::{PATIENCE, client, runtime};
use crate::args::{ClusterSlices, Format};
use crate::child::Running;
use crate::clock::Stopwatch;
use crate::stats::percentile;
use crate::{Result, proc};

const NAMESPACE: &str = "bench-slices";
const NODE: &str = "bench-node";
/// Requests under way at a time.
const AT_ONCE: usize = 32;
/// A slice has at most this many endpoints.
const SLICE: u32 = 100;

/// Who writes the slices: a name for the output, the label of the slices, and whether the Service has a selector.
const WRITERS: [(&str, &str, bool); 2] =
    [("rouse", "rouse.dev", false), ("kube-controller-manager", "endpointslice-controller.k8s.io", true)];

/// What one writer did.
struct Measured {
    name: &'static str,
    /// From the Service to the last endpoint in a slice.
    sync: Duration,
    creates: usize,
    /// From the change of a pod, as a watch sees it, to the slice, as another watch sees it, in ms.
    delays: Vec<f64>,
    writes: usize,
    /// CPU time per change, in microseconds.
    cpu: Option<f64>,
    /// From the first of the changes of all pods at once to the last slice.
    storm: Duration,
    storm_writes: usize,
    storm_cpu: Option<f64>,
}

/// Measures and prints.
pub(crate) fn run(ask: &ClusterSlices) -> Result<()> {
    let runtime = runtime()?;
    let client = runtime.block_on(client(&ask.kubeconfig))?;
    eprintln!("writing {} pods", ask.pods);
    runtime.block_on(write_pods(&client, ask.pods))?;
    let controller = start(&ask.kubeconfig)?;
    let mut all = Vec::new();
    for (name, label, selects) in WRITERS {
        let pid = (!selects).then_some(controller.pid());
        all.push(runtime.block_on(measure(&client, ask, (name, label, selects), pid))?);
    }
    let (memory, peak) = proc::memory(controller.pid())?;
    drop(controller);
    print(ask, &all, memory, peak);
    eprintln!("removing everything");
    runtime.block_on(remove(&client))
}

/// Starts the controller as a process of its own, so that its CPU time can be told apart.
fn start(kubeconfig: &Path) -> Result<Running> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("slice-controller").arg("--kubeconfig").arg(kubeconfig);
    let mut running = Running::start("the controller", &mut command)?;
    running
        .until("is ready", PATIENCE, |running| running.lines().contains(&"ready".to_owned()).then_some(()))?;
    Ok(running)
}

async fn measure(
    client: &Client,
    ask: &ClusterSlices,
    (name, label, selects): (&'static str, &'static str, bool),
    pid: Option<u32>,
) -> Result<Measured> {
    let cpu = || pid.map(|pid| proc::time_of(&[pid]));
    let spent = |before: Option<proc::Ticks>, changes: u32| {
        let spent = cpu()?.since(before?);
        Some(spent.micros() / f64::from(changes.max(1)))
    };
    eprintln!("{name}: the first sync");
    let mut watches = Watches::start(client, label).await?;
    let began = Stopwatch::start();
    apply(client, NAMESPACE, &service(name, selects)).await?;
    while watches.endpoints() < ask.pods {
        watches.next().await?;
    }
    let (sync, creates) = (began.elapsed(), watches.written);

    eprintln!("{name}: {} changes of one pod at a time", ask.changes);
    let (before, already) = (cpu(), watches.written);
    let mut delays = Vec::new();
    for change in 0..ask.changes {
        // Pods far apart, so that each is in another slice than the last one.
        let n = change.wrapping_mul(2_654_435_761) % ask.pods;
        let ready = watches.ready.get(&pod_name(n)).is_some_and(|ready| !ready);
        set_ready(client, n, ready).await?;
        let (mut seen, mut published) = (None, None);
        while seen.is_none() || published.is_none() {
            match watches.next().await? {
                Event::Pod(pod, at) if pod == pod_name(n) => seen = Some(at),
                Event::Slice(at) if watches.ready.get(&pod_name(n)) == Some(&ready) => {
                    published.get_or_insert(at);
                }
                _ => {}
            }
        }
        let delay = published.zip(seen).map(|(published, seen)| published.saturating_sub(seen));
        delays.push(delay.unwrap_or_default().as_secs_f64() * 1000.0);
    }
    let (writes, cpu_each) = (watches.written - already, spent(before, ask.changes));

    eprintln!("{name}: all pods at once");
    let (before, already) = (cpu(), watches.written);
    let ready = !watches.ready.values().next().copied().unwrap_or_default();
    let began = Stopwatch::start();
    let changing = stream::iter(0..ask.pods).map(|n| set_ready(client, n, ready)).buffered(AT_ONCE);
    let changing = changing.try_collect::<Vec<()>>();
    let following = async {
        while watches.ready.values().filter(|is| **is == ready).count() < ask.pods as usize {
            watches.next().await?;
        }
        Ok(began.elapsed())
    };
    let (changed, storm): (_, Result<Duration>) = tokio::join!(changing, following);
    changed?;
    let (storm, storm_writes, storm_cpu) = (storm?, watches.written - already, spent(before, ask.pods));
    let services = api(client, NAMESPACE, "v1", "Service");
    services.delete(name, &DeleteParams::default()).await?;
    while watches.endpoints() > 0 {
        watches.next().await?;
    }
    Ok(Measured { name, sync, creates, delays, writes, cpu: cpu_each, storm, storm_writes, storm_cpu })
}

/// Something that a watch has received, with the time.
enum Event {
    Pod(String, Duration),
    Slice(Duration),
}

/// An object that a watch has received.
enum Seen {
    Pod(String),
    /// The name of a slice, and what is in it.
    Slice(String, Endpoints),
}

/// The endpoints of a slice: the names of its pods, and whether they are ready.
type Endpoints = Vec<(String, bool)>;

/// Follows pods and the slices of one writer.
struct Watches {
    events: mpsc::Receiver<(Seen, Duration)>,
    slices: HashMap<String, Endpoints>,
    /// Whether the slices say that a pod is ready.
    ready: HashMap<String, bool>,
    /// How many writes of slices were seen.
    written: usize,
    _tasks: JoinSet<()>,
}

impl Watches {
    async fn start(client: &Client, label: &str) -> Result<Self> {
        let (told, events) = mpsc::channel(100_000);
        let (mut tasks, began) = (JoinSet::new(), Stopwatch::start());
        let slices = format!("endpointslice.kubernetes.io/managed-by={label}");
        for (version, kind, labels) in
            [("discovery.k8s.io/v1", "EndpointSlice", slices), ("v1", "Pod", String::new())]
        {
            let (api, told) = (api(client, NAMESPACE, version, kind), told.clone());
            let now = api.list(&ListParams::default().labels(&labels).limit(1)).await?;
            let mut version = now.metadata.resource_version.unwrap_or_default();
            tasks.spawn(async move {
                // A watch ends after five minutes, and goes on from where it was.
                while let Ok(stream) = api.watch(&WatchParams::default().labels(&labels), &version).await {
                    let mut stream = std::pin::pin!(stream);
                    while let Ok(Some(event)) = stream.try_next().await {
                        let at = began.elapsed();
                        let (object, gone) = match event {
                            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                            WatchEvent::Deleted(object) => (object, true),
                            _ => continue,
                        };
                        version = object.metadata.resource_version.clone().unwrap_or_default();
                        let name = object.metadata.name.clone().unwrap_or_default();
                        let seen = if kind == "Pod" {
                            Seen::Pod(name)
                        } else {
                            let there = if gone { Vec::new() } else { endpoints(&object.data) };
                            Seen::Slice(name, there)
                        };
                        if told.send((seen, at)).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
        Ok(Self { events, slices: HashMap::new(), ready: HashMap::new(), written: 0, _tasks: tasks })
    }

    async fn next(&mut self) -> Result<Event> {
        let next = tokio::time::timeout(PATIENCE, self.events.recv()).await?;
        let (seen, at) = next.ok_or("the watches have ended")?;
        match seen {
            Seen::Pod(pod) => Ok(Event::Pod(pod, at)),
            Seen::Slice(name, there) => {
                self.written += 1;
                self.ready.extend(there.iter().cloned());
                self.slices.insert(name, there);
                Ok(Event::Slice(at))
            }
        }
    }

    fn endpoints(&self) -> u32 {
        self.slices.values().map(Vec::len).sum::<usize>().try_into().unwrap_or(u32::MAX)
    }
}

fn endpoints(slice: &Value) -> Endpoints {
    let all = slice["endpoints"].as_array().into_iter().flatten();
    let read = |endpoint: &Value| {
        let name = endpoint["targetRef"]["name"].as_str().unwrap_or_default();
        (name.to_owned(), endpoint["conditions"]["ready"] == true)
    };
    all.map(read).collect()
}

fn pod_name(n: u32) -> String {
    format!("app-6d4cf56db6-{n:05}")
}

fn service(name: &str, selects: bool) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    });
    if selects {
        service["spec"]["selector"] = json!({"app": "bench"});
    } else {
        service["metadata"]["annotations"] = json!({"rouse.dev/selector": "app=bench"});
    }
    service
}

async fn write_pods(client: &Client, pods: u32) -> Result<()> {
    objects::namespace(client, NAMESPACE).await?;
    apply(client, "", &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})).await?;
    let all = stream::iter(0..pods).map(|n| async move {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod_name(n), "labels": {"app": "bench", "pod-template-hash": "6d4cf56db6"}},
            "spec": {
                "nodeName": NODE,
                "containers": [{
                    "name": "app", "image": "registry.example/shop/app:1.2.3",
                    "ports": [{"name": "http", "containerPort": 8080}],
                }],
            },
        });
        let api = api(client, NAMESPACE, "v1", "Pod");
        api.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        set_ready(client, n, true).await
    });
    all.buffered(AT_ONCE).try_collect::<Vec<()>>().await?;
    Ok(())
}

/// Writes the status of a pod as a kubelet does.
async fn set_ready(client: &Client, n: u32, ready: bool) -> Result<()> {
    let [_, a, b, c] = (n + 1).to_be_bytes();
    let ip = format!("10.{a}.{b}.{c}");
    let status = json!({"status": {
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
        "conditions": [{
            "type": "Ready", "status": if ready { "True" } else { "False" },
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    }});
    let pods = api(client, NAMESPACE, "v1", "Pod");
    pods.patch_status(&pod_name(n), &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

async fn remove(client: &Client) -> Result<()> {
    // No kubelet ends them.
    let pods = api(client, NAMESPACE, "v1", "Pod");
    pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await?;
    objects::remove_namespace(client, NAMESPACE).await
}

fn print(ask: &ClusterSlices, all: &[Measured], memory: f64, peak: f64) {
    let best = ask.pods.div_ceil(SLICE);
    if ask.output == Format::Json {
        let writers = all.iter().map(|of| {
            json!({
                "name": of.name, "sync_ms": of.sync.as_secs_f64() * 1000.0, "creates": of.creates,
                "delay_ms": of.delays, "writes": of.writes, "cpu_us_per_change": of.cpu,
                "storm_ms": of.storm.as_secs_f64() * 1000.0, "storm_writes": of.storm_writes,
                "storm_cpu_us_per_change": of.storm_cpu,
            })
        });
        let writers: Vec<Value> = writers.collect();
        println!(
            "{}",
            json!({"pods": ask.pods, "slices": best, "rss_mib": memory, "peak_rss_mib": peak, "writers": writers})
        );
        return;
    }
    println!(
        "{} pods in one service, {best} slices; rouse has {memory:.0} MiB resident (peak {peak:.0})",
        ask.pods
    );
    for of in all {
        let at = |percent| percentile(&of.delays, percent).unwrap_or_default();
        let cpu = |cpu: Option<f64>| cpu.map_or_else(String::new, |cpu| format!(", {cpu:.0} µs CPU each"));
        println!("{}", of.name);
        println!("  all endpoints after {:.2} s, with {} writes", of.sync.as_secs_f64(), of.creates);
        println!(
            "  a change is in the slice after {:.1} ms (p99 {:.1}, most {:.1}); {} writes for {} changes{}",
            at(50),
            at(99),
            at(100),
            of.writes,
            of.delays.len(),
            cpu(of.cpu)
        );
        println!(
            "  {} changes at once are in the slices after {:.1} s, with {} writes{}",
            ask.pods,
            of.storm.as_secs_f64(),
            of.storm_writes,
            cpu(of.storm_cpu)
        );
    }
}
