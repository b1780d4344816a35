//! Apps whose pods have a sidecar. The sidecars here are stand-ins: a shell that prints what it was given, and a server.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use rouse_core::endpoint::{PodUid, PortName};
use rouse_local::engine::{AppEventKind, AppSpec, LocalPodStatus, PORT_NAME, PodStage, SidecarLauncher};
use rouse_local::output::Line;
use rouse_net::auth::{Claim, ClaimError, ClaimGrant, Ownership as _};

use crate::harness::{Bench, HELPER, is_alive, is_exited, policy, server};

/// Where the sidecars and their apps listen.
type Addresses = Arc<Mutex<Vec<(SocketAddr, SocketAddr)>>>;

fn with_sidecar(name: &str) -> AppSpec {
    let mut app = server(name);
    app.sidecar = true;
    app.policy = policy(|settings| settings.min = 1);
    app
}

/// Runs `script` in a shell as the sidecar, with the arguments `LISTEN APP`, and remembers where both listen.
fn launcher(script: &'static str) -> (SidecarLauncher, Addresses) {
    let seen = Addresses::default();
    let told = Arc::clone(&seen);
    let launcher = SidecarLauncher::new((*b"a secret key").into(), move |pod| {
        told.lock().unwrap().push((pod.listen, pod.app));
        let arguments = ["sh".to_owned(), "-c".to_owned(), script.to_owned()];
        arguments.into_iter().chain([pod.listen.to_string(), pod.app.to_string()]).collect()
    });
    (launcher, seen)
}

fn serving() -> (SidecarLauncher, Addresses) {
    launcher(concat!("exec ", env!("CARGO_BIN_EXE_rouse-local-helper"), " serve"))
}

fn lines(bench: &Bench, app: &str) -> Vec<Line> {
    bench.engine.log(app).unwrap().tail()
}

#[tokio::test]
async fn requests_go_to_the_sidecar_and_probes_to_the_app() {
    let (launcher, seen) = serving();
    let bench = Bench::with_sidecars([with_sidecar("hello")], Some(launcher));
    let status = bench.ready("hello", 1).await;
    let (listen, app) = seen.lock().unwrap()[0];
    assert_eq!((status.pods[0].address, listen.ip()), (listen, app.ip()));
    assert_ne!(listen, app);
    assert_eq!(bench.request("hello").await.endpoint().addresses[..], [listen]);
    bench.end().await;
}

#[tokio::test]
async fn the_key_is_in_the_standard_input_of_the_sidecar_and_nowhere_else() {
    // Prints its input, its environment, and that of the guardian above it.
    let (launcher, _) = launcher(
        "echo stdin $(cat); cat /proc/self/environ /proc/$PPID/environ | tr '\\000' '\\n'; exec sleep 600",
    );
    let bench = Bench::with_sidecars([with_sidecar("hello")], Some(launcher));
    bench
        .becomes("hello", "told", |_| {
            lines(&bench, "hello").iter().any(|line| line.text.starts_with("PORT="))
        })
        .await;
    let with_key: Vec<String> = lines(&bench, "hello")
        .iter()
        .filter(|line| line.text.contains("secret"))
        .map(|line| format!("{}: {}", line.pod, line.text))
        .collect();
    assert_eq!(with_key, ["hello-1-sidecar: stdin a secret key"]);
    bench.end().await;
}

#[tokio::test]
async fn a_pod_ends_with_its_sidecar_and_another_one_follows() {
    let (launcher, seen) = serving();
    let mut bench = Bench::with_sidecars([with_sidecar("hello")], Some(launcher));
    let before = bench.ready("hello", 1).await;
    let (listen, _) = seen.lock().unwrap()[0];
    crate::harness::kill(listener_on(listen));
    bench.until("the pod ends", |_, what| is_exited(what)).await;
    assert!(!is_alive(before.pods[0].pid), "the app ended with its sidecar");
    let is_another = |status: &rouse_local::engine::AppStatus| {
        status.pods.iter().any(|pod| pod.phase == PodStage::Ready && pod.uid != before.pods[0].uid)
    };
    bench.becomes("hello", "ready again", is_another).await;
    bench.end().await;
}

#[tokio::test]
async fn a_sidecar_that_cannot_be_started_is_a_failed_start() {
    let launcher = SidecarLauncher::new(Arc::default(), |_| vec!["/no/such/program".to_owned()]);
    let mut bench = Bench::with_sidecars([with_sidecar("hello")], Some(launcher));
    let seen = bench.until("it fails", |_, what| matches!(what, AppEventKind::Failed { .. })).await;
    let Some(AppEventKind::Failed { reason }) = seen.last() else { panic!("{seen:?}") };
    assert!(reason.contains("/no/such/program"), "{reason}");
    bench.end().await;
}

/// What a pod truthfully says of itself.
fn claim(pod: &LocalPodStatus) -> Claim {
    Claim {
        service: "local/hello".parse().unwrap(),
        pod: pod.name.to_string(),
        uid: pod.uid.clone(),
        ips: vec![pod.address.ip()],
        ports: BTreeMap::from([(PortName::new(PORT_NAME), pod.address.port())]),
        service_account: None,
    }
}

#[tokio::test]
async fn a_pod_may_say_only_what_the_engine_started() {
    let (launcher, _) = serving();
    let bench = Bench::with_sidecars([with_sidecar("hello"), server("other")], Some(launcher));
    let pod = bench.ready("hello", 1).await.pods[0].clone();
    let (engine, truth) = (&bench.engine, claim(&pod));
    assert_eq!(engine.check(&truth).await, Ok(ClaimGrant::default()));
    assert!(engine.granted(&truth).is_some());
    let stranger: IpAddr = "127.0.0.9".parse().unwrap();
    let port = |number| BTreeMap::from([(PortName::new(PORT_NAME), number)]);
    let lies = [
        Claim { pod: "hello-2".into(), ..truth.clone() },
        Claim { ips: vec![stranger], ..truth.clone() },
        Claim { ips: vec![pod.address.ip(), stranger], ..truth.clone() },
        Claim { ports: port(1), ..truth.clone() },
        Claim { ports: BTreeMap::from([(PortName::new("grpc"), pod.address.port())]), ..truth.clone() },
    ];
    for lie in lies {
        assert!(matches!(engine.check(&lie).await, Err(ClaimError::Denied(_))), "{lie:?}");
        assert!(engine.granted(&lie).is_none(), "{lie:?}");
    }
    // Pods that are not known are perhaps not known yet.
    let unknown = [
        Claim { uid: PodUid::new("another"), ..truth.clone() },
        Claim { service: "local/other".parse().unwrap(), ..truth.clone() },
        Claim { service: "local/none".parse().unwrap(), ..truth },
    ];
    for claim in unknown {
        assert!(matches!(engine.check(&claim).await, Err(ClaimError::Unavailable(_))), "{claim:?}");
        assert!(engine.granted(&claim).is_none());
    }
    bench.end().await;
}

/// The process that listens on `address`.
fn listener_on(address: SocketAddr) -> u32 {
    let is_it = |pid: &u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let (port, serve) = (format!("PORT={}", address.port()), format!("{HELPER}\0serve\0"));
        command.starts_with(serve.as_bytes())
            && environ.split(|byte| *byte == 0).any(|variable| variable == port.as_bytes())
    };
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_it).expect("the sidecar runs")
}
