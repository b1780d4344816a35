//! Broken watches: during API server outages, compaction and etcd restores, requests use the last known state; then the
//! gateway resyncs.
//!
//! Each trial has a control plane of its own. Pods are processes on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rouse_e2e::body;
use rouse_e2e::client::load::Load;
use rouse_e2e::client::session::{self, FullResponse, Http};
use rouse_e2e::gateway::{Gateway, Launch};
use rouse_e2e::proc;
use rouse_e2e::target::Target;
use rouse_e2e::wait::{LONG_PATIENCE, patiently};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::app::App;
use crate::harness::{Case, trial};
use crate::identity;
use crate::own_cluster::{self, HostPod};
use crate::rollouts::seconds;
use crate::test_namespace::{DEPLOYMENT, ROUTE, SLICE, TestNamespace, programs};

pub(crate) const TRIALS: &[Case] = &[
    trial!(an_api_server_that_is_away_costs_no_request_and_delays_a_wake).on_its_own_cluster().once(),
    trial!(a_history_that_is_gone_is_listed_anew_and_empties_nothing).on_its_own_cluster().once(),
    trial!(an_etcd_restored_from_a_backup_is_followed_from_there).on_its_own_cluster().once(),
    trial!(an_etcd_restored_unnoticed_that_has_gone_on_since_is_seen_whole).on_its_own_cluster().once(),
    trial!(a_slow_api_server_delays_news_and_nothing_else).on_its_own_cluster().once(),
    trial!(bookmarks_are_heard_where_nothing_happens).on_its_own_cluster().once(),
    trial!(a_token_that_is_refused_is_read_again).on_its_own_cluster().once(),
];

/// Requests a second.
const TRICKLE: u32 = 30;

/// The kinds that every gateway watches.
const KINDS: [&str; 5] = ["EndpointSlice", "Service", "InterceptorRoute", "HTTPScaledObject", "Pod"];

/// Lets a gateway accept endpoints without Pod objects: there is no node, and the trials write the slices.
fn with_host_pods(launch: Launch) -> Launch {
    launch.flag("--allow-manual-endpoints", true)
}

/// An app with one pod that is ready, and a route to it.
async fn warm(space: &TestNamespace, app: &str, pod: &str) -> HostPod {
    let pod = HostPod::start(pod).await;
    space.apply(pod.slice(space, app, true)).await;
    space.serve(&App::new(app)).await;
    pod
}

/// How often each kind was listed.
async fn lists(gateway: &Gateway) -> BTreeMap<&'static str, f64> {
    let metrics = gateway.admin.metrics().await;
    let of = |kind| (kind, metrics.sum("rouse_watch_lists_total", &[("kind", kind)]));
    KINDS.into_iter().map(of).collect()
}

/// Waits until each kind was listed again since `before`, and asserts that none was listed more than four times.
async fn listed_again(gateway: &Gateway, before: &BTreeMap<&'static str, f64>) {
    let again = patiently("everything to be listed again", async || {
        let now = lists(gateway).await.into_iter();
        let more: Vec<_> = now.map(|(kind, lists)| (kind, lists - before[kind])).collect();
        more.iter().all(|(_, more)| *more >= 1.0).then_some(more)
    })
    .await;
    assert!(again.iter().all(|(_, more)| *more <= 4.0), "{again:?}");
}

/// The watches, as the admin API reports them.
async fn watches(gateway: &Gateway) -> Vec<Value> {
    let told = gateway.admin.get("/api/v1/watches").await.json();
    told.as_array().unwrap_or_else(|| panic!("no list: {told}")).clone()
}

/// Waits until all watches are in this state.
async fn all_are(gateway: &Gateway, state: &str) -> Vec<Value> {
    patiently(&format!("all watches to be {state}"), async || {
        let all = watches(gateway).await;
        (all.len() == KINDS.len() && all.iter().all(|watch| watch["state"] == state)).then_some(all)
    })
    .await
}

/// Whether all services are reported as stale, or none; `None` if they differ.
async fn stale(gateway: &Gateway) -> Option<bool> {
    let all = gateway.admin.get("/api/v1/services").await.json();
    let all: BTreeSet<bool> =
        all.as_array().expect("services").iter().map(|one| one["stale"].as_bool().unwrap()).collect();
    if all.len() == 1 { all.first().copied() } else { None }
}

/// Waits until the gateway has exactly the endpoints that the API server has.
async fn agree(space: &TestNamespace, gateway: &Gateway) {
    type Endpoints = BTreeSet<(String, SocketAddr, &'static str)>;
    let written = async || -> Endpoints {
        let mut all = Endpoints::new();
        for slice in space.list(SLICE, "").await {
            let service = slice["metadata"]["labels"]["kubernetes.io/service-name"].as_str().unwrap();
            for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
                let ip = endpoint["addresses"][0].as_str().and_then(|ip| ip.parse().ok()).unwrap();
                let port = slice["ports"][0]["port"].as_u64().and_then(|port| port.try_into().ok()).unwrap();
                let state = if endpoint["conditions"]["ready"] == true { "Ready" } else { "Draining" };
                all.insert((format!("{}/{service}", space.name()), SocketAddr::new(ip, port), state));
            }
        }
        all
    };
    let known = async || -> Endpoints {
        let mut all = Endpoints::new();
        for service in gateway.admin.services().await {
            for endpoint in service.endpoints {
                let state = match &*endpoint.state {
                    "Ready" => "Ready",
                    "Draining" => "Draining",
                    _ => "another",
                };
                all.insert((service.service.clone(), endpoint.address, state));
            }
        }
        all
    };
    let (mut last, wanted) = (Endpoints::new(), written().await);
    let same = patiently("gateway and API server to agree", async || {
        last = known().await;
        (last == wanted).then_some(())
    });
    // Shorter than the deadline of `patiently`, so that the failure shows what differs.
    let outcome = timeout(Duration::from_secs(90), same).await;
    assert!(outcome.is_ok(), "the gateway has {last:#?}, the API server {wanted:#?}");
}

/// A request with a long client timeout.
fn patient(target: &Target) -> JoinSet<FullResponse> {
    let target = target.clone();
    let mut request = JoinSet::new();
    request.spawn(async move {
        let mut http = Http::one(&target).await;
        let asked = http.request(http::Method::GET, "/headers").body(body::empty()).unwrap();
        let answer = timeout(LONG_PATIENCE, http.start(asked).await).await.expect("an answer in minutes");
        session::whole(answer.expect("an answer")).await.expect("a whole answer")
    });
    request
}

/// Waits for the wake of an app, gives it a pod, and asserts that this pod answers the held request.
async fn woken(space: &TestNamespace, app: &str, mut held: JoinSet<FullResponse>) -> HostPod {
    assert_eq!(held.len(), 1);
    assert!(held.try_join_next().is_none(), "the request is held");
    space.until(DEPLOYMENT, app, "to be woken", |it| it["spec"]["replicas"] == 1).await;
    let pod = HostPod::start(&format!("{app}-0")).await;
    space.apply(pod.slice(space, app, true)).await;
    let answer = held.join_next().await.expect("a request").expect("an answer");
    assert_eq!(
        (answer.status.as_u16(), answer.header("x-rouse-cold-start")),
        (200, "true"),
        "{}",
        answer.text()
    );
    assert_eq!(answer.json()["pod"], pod.name);
    pod
}

async fn an_api_server_that_is_away_costs_no_request_and_delays_a_wake(space: TestNamespace) {
    let _one = warm(&space, "shop", "one").await;
    space.serve(&App::new("cold")).await;
    space.run(&App::new("hasty")).await;
    space.apply(space.route("hasty").readiness_timeout("1s").object()).await;
    let gateway = with_host_pods(space.launch().await).start(&programs()).await;
    all_are(&gateway, "following").await;
    let before = lists(&gateway).await;
    let load = Load::on(&gateway.target(&space.host("shop")), 10 * TRICKLE);
    load.flows(100).await;

    own_cluster::node(&space).end("kube-apiserver", Signal::KILL).await;
    let held = patient(&gateway.target(&space.host("cold")));
    for watch in all_are(&gateway, "broken").await {
        assert!(watch["why"].as_str().is_some_and(|why| why.contains("cannot be reached")), "{watch}");
    }
    // A held request times out also without the API server.
    let refused = session::get(&gateway.target(&space.host("hasty")), "/").await;
    assert_eq!((refused.status.as_u16(), refused.header("x-rouse-error")), (504, "readiness_timeout"));
    let away = f64::from(u32::try_from(seconds().max(15)).unwrap());
    patiently("the metrics to say for how long", async || {
        let metrics = gateway.admin.metrics().await;
        let broken = |kind: &&str| metrics.sum("rouse_watch_broken_seconds", &[("kind", kind)]) >= away;
        KINDS.iter().all(broken).then_some(())
    })
    .await;
    assert_eq!(stale(&gateway).await, Some(true));
    assert_eq!(gateway.admin.get("/readyz").await.status, 200, "it serves the last known state");
    load.flows(100).await;

    own_cluster::api_server_returns(&space).await;
    let _cold = woken(&space, "cold", held).await;
    all_are(&gateway, "following").await;
    assert_eq!(stale(&gateway).await, Some(false));
    let metrics = gateway.admin.metrics().await;
    assert!(metrics.sum("rouse_watch_broken_seconds", &[]) < f64::EPSILON);
    listed_again(&gateway, &before).await;
    let two = HostPod::start("two").await;
    space.apply(two.slice(&space, "shop", true)).await;
    agree(&space, &gateway).await;
    load.stop().await.assert_perfect();
    gateway.stop().await;
}

/// For a gateway that will be suspended: when it continues, it must not close client connections as idle.
fn standing_still(launch: Launch) -> Launch {
    launch.flag("--idle-timeout", "10m")
}

/// A suspended process; it continues when this is dropped.
struct Still(u32);

impl Still {
    fn stands(pid: u32) -> Self {
        proc::signal(pid, Signal::STOP);
        Self(pid)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        proc::signal(self.0, Signal::CONT);
    }
}

async fn a_history_that_is_gone_is_listed_anew_and_empties_nothing(space: TestNamespace) {
    let one = warm(&space, "shop", "one").await;
    let _old = warm(&space, "old", "old").await;
    let gateway = standing_still(with_host_pods(space.launch().await)).start(&programs()).await;
    all_are(&gateway, "following").await;
    let before = lists(&gateway).await;
    let load = Load::on(&gateway.target(&space.host("shop")), TRICKLE);
    load.flows(30).await;

    // The gateway is suspended through all of this. When it continues, its watches have ended, and it asks for history that
    // neither the API server nor etcd has any more.
    let still = Still::stands(gateway.pid);
    own_cluster::node(&space).end("kube-apiserver", Signal::TERM).await;
    own_cluster::api_server_returns(&space).await;
    let two = HostPod::start("two").await;
    space.apply(two.slice(&space, "shop", true)).await;
    space.apply(one.slice(&space, "shop", false)).await;
    space.delete(SLICE, "old-old").await;
    space.delete(ROUTE, "old").await;
    let _new = warm(&space, "new", "new").await;
    own_cluster::compact(&space).await;
    own_cluster::node(&space).end("kube-apiserver", Signal::KILL).await;
    own_cluster::api_server_returns(&space).await;
    drop(still);

    agree(&space, &gateway).await;
    all_are(&gateway, "following").await;
    listed_again(&gateway, &before).await;
    routes_are(&space, &gateway, &[("shop", 200), ("new", 200), ("old", 404)]).await;
    load.flows(30).await;
    // The new watch delivers events.
    space.delete(SLICE, "shop-one").await;
    agree(&space, &gateway).await;
    load.stop().await.assert_perfect();
    gateway.stop().await;
}

/// Waits until a request to each app is answered with this status.
async fn routes_are(space: &TestNamespace, gateway: &Gateway, expected: &[(&str, u16)]) {
    for (app, status) in expected {
        patiently(&format!("{app} to be answered {status}"), async || {
            let answer = session::get(&gateway.target(&space.host(app)), "/").await;
            (answer.status.as_u16() == *status).then_some(())
        })
        .await;
    }
}

/// What changes after the backup.
struct History {
    one: HostPod,
    two: HostPod,
    _new: HostPod,
}

/// Before: `shop` with pod one. After: pod one is replaced by pod two, and there is one more app.
async fn happens_after(space: &TestNamespace, one: HostPod) -> History {
    let two = HostPod::start("two").await;
    space.apply(two.slice(space, "shop", true)).await;
    space.delete(SLICE, "shop-one").await;
    History { one, two, _new: warm(space, "new", "new").await }
}

/// Ends the API server by a signal, takes etcd back to its backup, and waits until both serve again.
async fn restore_etcd(space: &TestNamespace, signal: Signal) {
    let node = own_cluster::node(space);
    node.end("kube-apiserver", signal).await;
    node.end("etcd", Signal::KILL).await;
    own_cluster::restore(space);
    own_cluster::start(space, "etcd").await;
    own_cluster::api_server_returns(space).await;
}

async fn an_etcd_restored_from_a_backup_is_followed_from_there(space: TestNamespace) {
    let one = warm(&space, "shop", "one").await;
    let launch = with_host_pods(space.launch().await);
    own_cluster::back_up(&space).await;
    let gateway = launch.start(&programs()).await;
    let load = Load::on(&gateway.target(&space.host("shop")), 10 * TRICKLE);
    let history = happens_after(&space, one).await;
    agree(&space, &gateway).await;
    routes_are(&space, &gateway, &[("shop", 200), ("new", 200)]).await;
    let before = lists(&gateway).await;
    let was = own_cluster::revision(&space).await;

    restore_etcd(&space, Signal::KILL).await;
    assert!(own_cluster::revision(&space).await < was, "the revision went back");

    agree(&space, &gateway).await;
    routes_are(&space, &gateway, &[("shop", 200), ("new", 404)]).await;
    all_are(&gateway, "following").await;
    listed_again(&gateway, &before).await;
    // The next changes have resource versions that the gateway has seen before.
    space.apply(history.two.slice(&space, "shop", true)).await;
    agree(&space, &gateway).await;
    space.apply(history.one.slice(&space, "shop", false)).await;
    agree(&space, &gateway).await;
    load.stop().await.assert_perfect();
    gateway.stop().await;
}

async fn an_etcd_restored_unnoticed_that_has_gone_on_since_is_seen_whole(space: TestNamespace) {
    let one = warm(&space, "shop", "one").await;
    let launch = with_host_pods(space.launch().await);
    own_cluster::back_up(&space).await;
    let gateway = standing_still(launch).start(&programs()).await;
    let load = Load::on(&gateway.target(&space.host("shop")), TRICKLE);
    let _history = happens_after(&space, one).await;
    agree(&space, &gateway).await;
    routes_are(&space, &gateway, &[("shop", 200), ("new", 200)]).await;
    all_are(&gateway, "following").await;
    let was = own_cluster::revision(&space).await;

    let still = Still::stands(gateway.pid);
    let long = Instant::now() + Duration::from_secs(20);
    restore_etcd(&space, Signal::TERM).await;
    // One more pod, and then other writes until the revision exceeds the last one that the gateway saw.
    let three = HostPod::start("three").await;
    space.apply(three.slice(&space, "shop", true)).await;
    let mut count = 0;
    while own_cluster::revision(&space).await <= was + 10 {
        count += 1;
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "clock" }, "data": { "at": count.to_string() },
        });
        space.apply(map).await;
    }
    // A real restore takes even longer.
    patiently("20 s", async || (Instant::now() >= long).then_some(())).await;
    drop(still);

    agree(&space, &gateway).await;
    routes_are(&space, &gateway, &[("shop", 200), ("new", 404)]).await;
    load.stop().await.assert_perfect();
    gateway.stop().await;
}

/// A TCP proxy between a gateway and the API server that delays every byte, or blocks all.
struct Delay {
    address: SocketAddr,
    /// The delay; `None`: nothing passes.
    by: watch::Sender<Option<Duration>>,
    _tasks: JoinSet<()>,
}

impl Delay {
    async fn before(server: SocketAddr, by: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (by, delay) = watch::channel(Some(by));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut both_ways = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let Ok(server) = TcpStream::connect(server).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                both_ways.spawn(slowly(from_client, to_server, delay.clone()));
                both_ways.spawn(slowly(from_server, to_client, delay.clone()));
            }
        });
        Self { address, by, _tasks: tasks }
    }
}

async fn slowly(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut delay: watch::Receiver<Option<Duration>>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let read = Instant::now();
        let Ok(delay) = delay.wait_for(Option::is_some).await.map(|delay| delay.unwrap_or_default()) else {
            return;
        };
        sleep_until(read + delay).await;
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// A copy of the kubeconfig that has `to` as the API server's address.
fn redirected(kubeconfig: &Path, to: SocketAddr) -> PathBuf {
    let mut file: Value = serde_json::from_slice(&fs::read(kubeconfig).unwrap()).unwrap();
    file["clusters"][0]["cluster"]["server"] = json!(format!("https://{to}"));
    let redirected = kubeconfig.with_extension("redirected");
    fs::write(&redirected, file.to_string()).unwrap();
    redirected
}

fn server_of(kubeconfig: &Path) -> SocketAddr {
    let file: Value = serde_json::from_slice(&fs::read(kubeconfig).unwrap()).unwrap();
    let server = file["clusters"][0]["cluster"]["server"].as_str().unwrap();
    server.trim_start_matches("https://").parse().unwrap()
}

async fn a_slow_api_server_delays_news_and_nothing_else(space: TestNamespace) {
    let one = warm(&space, "shop", "one").await;
    space.serve(&App::new("cold")).await;
    let identity = identity::Identity::of(&space).await;
    let delay = Delay::before(server_of(&identity.kubeconfig), Duration::from_secs(1)).await;
    let launch = with_host_pods(Launch::new(&redirected(&identity.kubeconfig, delay.address)));
    let launch = launch.flag("--watch-namespace", space.name());
    let gateway = launch.start(&programs()).await;
    all_are(&gateway, "following").await;
    let before = lists(&gateway).await;
    let load = Load::on(&gateway.target(&space.host("shop")), 10 * TRICKLE);
    load.flows(100).await;
    let two = HostPod::start("two").await;
    space.apply(two.slice(&space, "shop", true)).await;
    agree(&space, &gateway).await;

    // Block all bytes for a while: changes arrive afterwards, and a wake waits.
    delay.by.send_replace(None);
    let held = patient(&gateway.target(&space.host("cold")));
    space.apply(one.slice(&space, "shop", false)).await;
    let silence = Instant::now() + Duration::from_secs(12);
    patiently("12 s of silence", async || (Instant::now() >= silence).then_some(())).await;
    load.flows(100).await;
    delay.by.send_replace(Some(Duration::from_secs(1)));
    let _cold = woken(&space, "cold", held).await;
    agree(&space, &gateway).await;
    assert_eq!(lists(&gateway).await, before, "a slow watch is not listed again");
    all_are(&gateway, "following").await;
    load.stop().await.assert_perfect();
    gateway.stop().await;
}

async fn bookmarks_are_heard_where_nothing_happens(space: TestNamespace) {
    let _one = warm(&space, "shop", "one").await;
    let gateway = with_host_pods(space.launch().await).start(&programs()).await;
    all_are(&gateway, "following").await;
    let before = lists(&gateway).await;
    let load = Load::on(&gateway.target(&space.host("shop")), TRICKLE);
    // There are no objects of this kind, so its watch carries only bookmarks.
    let heard = async || {
        let all = watches(&gateway).await;
        let quiet = all.iter().find(|watch| watch["kind"] == "HTTPScaledObject").expect("the watch");
        quiet["heard_us"].as_u64().expect("a time")
    };
    let mut longest = heard().await;
    patiently("a bookmark", async || {
        let now = heard().await;
        let heard_again = now < longest;
        longest = longest.max(now);
        heard_again.then_some(())
    })
    .await;
    assert_eq!(lists(&gateway).await, before, "a bookmark does not cause a list");
    load.stop().await.assert_perfect();
    gateway.stop().await;
}

async fn a_token_that_is_refused_is_read_again(space: TestNamespace) {
    let one = warm(&space, "shop", "one").await;
    space.serve(&App::new("cold")).await;
    let (kubeconfig, token) = identity::with_token_file(&space).await;
    let launch = with_host_pods(Launch::new(&kubeconfig)).flag("--watch-namespace", space.name());
    let gateway = launch.start(&programs()).await;
    all_are(&gateway, "following").await;
    let before = lists(&gateway).await;
    let load = Load::on(&gateway.target(&space.host("shop")), TRICKLE);
    load.flows(30).await;

    identity::revoke(&space).await;
    // Open watches continue with the old token; new ones are refused.
    own_cluster::node(&space).end("kube-apiserver", Signal::KILL).await;
    own_cluster::api_server_returns(&space).await;
    patiently("all watches to be refused", async || {
        let all = watches(&gateway).await;
        let refused = |watch: &Value| watch["why"].as_str().is_some_and(|why| why.contains("nauthorized"));
        all.iter().all(refused).then_some(())
    })
    .await;
    let two = HostPod::start("two").await;
    space.apply(two.slice(&space, "shop", true)).await;
    let held = patient(&gateway.target(&space.host("cold")));
    load.flows(30).await;

    identity::renew(&space, &token).await;
    let _cold = woken(&space, "cold", held).await;
    all_are(&gateway, "following").await;
    agree(&space, &gateway).await;
    listed_again(&gateway, &before).await;
    space.apply(one.slice(&space, "shop", false)).await;
    agree(&space, &gateway).await;
    load.stop().await.assert_perfect();
    gateway.stop().await;
}
