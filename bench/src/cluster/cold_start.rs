//! Cold start latency on a real cluster, through Rouse in its modes and through KEDA HTTP add-on.

use std::net::SocketAddr;
use std::time::Duration;

use kube::Client;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::objects::{api, apply, namespace, remove_namespace};
use super::phases::{PHASES, Reached, Watched};
use super::push::Push;
use super::{Gateway, PATIENCE, client, runtime};
use crate::args::{ClusterColdStart, Format};
use crate::clock::{Stopwatch, delay};
use crate::rouse::binary;
use crate::stats::Spread;
use crate::{Result, http, table};

const NAMESPACE: &str = "bench-cold-start";
/// KEDA's scaler polls every 500 ms: until it sees that there are no requests, KEDA would wake the app again.
const KEDA_REST: Duration = Duration::from_millis(2500);

/// One gateway and mode that is measured.
#[derive(Debug)]
struct Subject {
    label: &'static str,
    namespace: String,
    app: String,
    /// The address for requests; `host` is their `Host`.
    address: SocketAddr,
    host: String,
    cluster_ip: SocketAddr,
    keda: bool,
    starts: Vec<Start>,
}

/// One cold start, in milliseconds since the request began.
#[derive(Debug)]
struct Start {
    first_byte: f64,
    status: u16,
    phases: [Option<f64>; 6],
}

/// Measures and prints.
pub(crate) fn run(ask: &ClusterColdStart) -> Result<()> {
    let binary = binary(ask.common.rouse.as_deref())?;
    let runtime = runtime()?;
    let client = runtime.block_on(client(&ask.kubeconfig))?;
    runtime.block_on(namespace(&client, NAMESPACE))?;
    let image = ask.push.as_deref();
    let mut push = image.map(|image| Push::new(&binary, NAMESPACE, image, &ask.push_address)).transpose()?;
    let push_flags = push.as_ref().map(Push::flags).unwrap_or_default();
    let mut flags = vec!["--watch-namespace", NAMESPACE];
    flags.extend(push_flags.iter().map(String::as_str));
    let gateway = Gateway::start(&binary, &ask.kubeconfig, &flags)?;
    if let Some(push) = &mut push {
        runtime.block_on(push.publish(&client, &gateway))?;
    }
    let mut subjects = runtime.block_on(subjects(&client, gateway.address, push.as_ref(), ask.keda))?;
    for round in 0..ask.count {
        let first = round as usize % subjects.len().max(1);
        subjects.rotate_left(first);
        for subject in &mut subjects {
            // A varying pause, so that the starts are not synchronised with any timer.
            let pause = Duration::from_millis(u64::from(round) * 137 % 1000);
            let start = runtime.block_on(one(&client, subject, pause))?;
            eprintln!(
                "{:>3}  {:<28} {:>6.0} ms  {}",
                round + 1,
                subject.label,
                start.first_byte,
                start.status
            );
            subject.starts.push(start);
        }
        subjects.rotate_right(first);
    }
    drop(gateway);
    runtime.block_on(remove_namespace(&client, NAMESPACE))?;
    print(ask.common.output, &subjects)
}

/// A mode of Rouse.
#[derive(Debug, Clone, Copy)]
struct Mode {
    label: &'static str,
    app: &'static str,
    direct: &'static str,
    probe: &'static str,
    /// Seconds between two readiness probes of the kubelet.
    period: u32,
    push: bool,
}

const MODES: [Mode; 3] = [
    Mode {
        label: "Rouse always, probing",
        app: "probed",
        direct: "always",
        probe: "enabled",
        period: 1,
        push: false,
    },
    Mode {
        label: "Rouse always",
        app: "direct",
        direct: "always",
        probe: "disabled",
        period: 1,
        push: false,
    },
    Mode {
        label: "Rouse disabled (ClusterIP)",
        app: "cluster-ip",
        direct: "disabled",
        probe: "disabled",
        period: 1,
        push: false,
    },
];

/// Measured beside the others if there is an image with the sidecar. With a period of 10 s the kubelet is late.
const PUSH_MODES: [Mode; 4] = [
    Mode {
        label: "Rouse always, push",
        app: "pushed",
        direct: "always",
        probe: "disabled",
        period: 1,
        push: true,
    },
    Mode {
        label: "10 s: always, probing",
        app: "probed-10",
        direct: "always",
        probe: "enabled",
        period: 10,
        push: false,
    },
    Mode {
        label: "10 s: always",
        app: "direct-10",
        direct: "always",
        probe: "disabled",
        period: 10,
        push: false,
    },
    Mode {
        label: "10 s: always, push",
        app: "pushed-10",
        direct: "always",
        probe: "disabled",
        period: 10,
        push: true,
    },
];

async fn subjects(
    client: &Client,
    rouse: SocketAddr,
    push: Option<&Push>,
    keda: Option<SocketAddr>,
) -> Result<Vec<Subject>> {
    let mut all = Vec::new();
    let more: &[Mode] = if push.is_some() { &PUSH_MODES } else { &[] };
    for mode in MODES.iter().chain(more) {
        let Mode { label, app, .. } = *mode;
        let objects = app_objects(mode).to_vec();
        let objects = match push.filter(|_| mode.push) {
            Some(push) => push.inject(&objects)?,
            None => objects,
        };
        for object in &objects {
            apply(client, NAMESPACE, object).await?;
        }
        let (namespace, cluster_ip) = (NAMESPACE.to_owned(), cluster_ip(client, NAMESPACE, app).await?);
        let (host, app) = (format!("{app}.test"), app.to_owned());
        let (address, keda, starts) = (rouse, false, Vec::new());
        all.push(Subject { label, namespace, app, address, host, cluster_ip, keda, starts });
    }
    if let Some(address) = keda {
        let namespace = "keda-app".to_owned();
        let cluster_ip = cluster_ip(client, &namespace, "hello").await?;
        let (app, host) = ("hello".to_owned(), "hello.test".to_owned());
        let (label, starts) = ("KEDA HTTP add-on", Vec::new());
        all.push(Subject { label, namespace, app, address, host, cluster_ip, keda: true, starts });
    }
    // The first request is not counted: routes, watches and names are new, too.
    for subject in &all {
        let (address, host) = (subject.address, subject.host.clone());
        let answer = tokio::task::spawn_blocking(move || http::get(address, &host, "/")).await??;
        eprintln!("     {:<28} {}", subject.label, answer.status);
    }
    Ok(all)
}

/// The app that a subject wakes.
fn app_objects(mode: &Mode) -> [Value; 3] {
    let Mode { app, direct, probe, period, .. } = *mode;
    let labels = json!({"app": app});
    let container = json!({
        "name": "hello", "image": "localhost/hello:1",
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": period},
    });
    let template = json!({
        "metadata": {"labels": labels},
        "spec": {
            "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1, "containers": [container],
        },
    });
    [
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": app},
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": app},
            "spec": {"selector": labels, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
        }),
        json!({
            "apiVersion": "http.keda.sh/v1beta1", "kind": "InterceptorRoute",
            "metadata": {"name": app, "annotations": {
                "rouse.dev/direct-pod-routing": direct, "rouse.dev/probe": probe,
            }},
            "spec": {
                "target": {"service": app, "port": 80}, "rules": [{"hosts": [format!("{app}.test")]}],
                "scalingMetric": {"concurrency": {"targetValue": 100}},
            },
        }),
    ]
}

async fn cluster_ip(client: &Client, namespace: &str, app: &str) -> Result<SocketAddr> {
    let service = api(client, namespace, "v1", "Service").get(app).await?;
    let ip = service.data["spec"]["clusterIP"].as_str().ok_or("the Service has no ClusterIP")?;
    Ok(SocketAddr::new(ip.parse()?, 80))
}

/// Scales the app to zero, waits until its pods are gone, and sends a request.
async fn one(client: &Client, subject: &Subject, pause: Duration) -> Result<Start> {
    if subject.keda {
        delay(KEDA_REST).await;
    }
    let deployments = api(client, &subject.namespace, "apps/v1", "Deployment");
    let zero = Patch::Merge(json!({"spec": {"replicas": 0}}));
    deployments.patch_scale(&subject.app, &PatchParams::default(), &zero).await?;
    let pods = api(client, &subject.namespace, "v1", "Pod");
    let own = ListParams::default().labels(&format!("app={}", subject.app));
    let asleep = async {
        while !pods.list(&own).await?.items.is_empty() {
            delay(Duration::from_millis(50)).await;
        }
        Result::Ok(())
    };
    tokio::time::timeout(PATIENCE, asleep).await.map_err(|_| "the app does not go to zero")??;
    delay(Duration::from_secs(1) + pause).await;

    let (began, reached) = (Stopwatch::start(), Reached::default());
    let watched = Watched {
        client: client.clone(),
        namespace: subject.namespace.clone(),
        app: subject.app.clone(),
        cluster_ip: subject.cluster_ip,
        began,
        reached: reached.clone(),
    };
    let tasks = watched.follow();
    let (address, host) = (subject.address, subject.host.clone());
    let offset = began.elapsed();
    let answer = tokio::task::spawn_blocking(move || http::get(address, &host, "/")).await??;
    let waited = Duration::from_micros(answer.first_byte_us.saturating_sub(answer.began_us));
    // The ClusterIP may answer later than the request was answered; the result shows that.
    let all = async {
        while reached.all().iter().any(Option::is_none) {
            delay(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all).await.ok();
    drop(tasks);
    let first_byte = (offset + waited).as_secs_f64() * 1000.0;
    Ok(Start { first_byte, status: answer.status, phases: reached.all() })
}

fn print(format: Format, subjects: &[Subject]) -> Result<()> {
    if format == Format::Json {
        let starts = |subject: &Subject| -> Vec<Value> {
            let all = subject.starts.iter().map(|start| {
                json!({"first_byte_ms": start.first_byte, "status": start.status, "phases_ms": start.phases})
            });
            all.collect()
        };
        let all: Vec<Value> = subjects
            .iter()
            .map(|subject| json!({"subject": subject.label, "phases": PHASES, "starts": starts(subject)}))
            .collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    let cell = |values: Vec<f64>| match Spread::of(&values) {
        Some(spread) => format!("{:.0} ({:.0}-{:.0})", spread.median, spread.min, spread.max),
        None => "-".to_owned(),
    };
    let mut head = vec!["ms since the request: median (range)"];
    head.extend(PHASES);
    head.extend(["first byte", "after the pod answers", "not 200"]);
    let rows: Vec<Vec<String>> = subjects
        .iter()
        .map(|subject| {
            let starts = &subject.starts;
            let phase = |at: usize| starts.iter().filter_map(|start| *start.phases.get(at)?).collect();
            let after = starts.iter().filter_map(|start| Some(start.first_byte - start.phases[3]?)).collect();
            let mut row = vec![subject.label.to_owned()];
            row.extend((0..PHASES.len()).map(|at| cell(phase(at))));
            row.push(cell(starts.iter().map(|start| start.first_byte).collect()));
            row.push(cell(after));
            row.push(starts.iter().filter(|start| start.status != 200).count().to_string());
            row
        })
        .collect();
    print!("{}", table::columns(&head, &rows));
    Ok(())
}
