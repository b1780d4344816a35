//! Restarts, reloads and shutdown of the local engine, without dropped requests.

use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::State;
use rouse_core::hold::AcquireError;
use rouse_core::service::SlotRequest;
use rouse_local::engine::{AppEventKind, AppSpec, PodStage};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::harness::{
    Bench, GENEROUS, endpoints, is_alive, is_exited, is_ready, is_started, pids, policy, script, server, uids,
};

fn pinned(name: &str, count: u32) -> AppSpec {
    let mut app = server(name);
    app.policy = policy(|settings| settings.min = count);
    app
}

/// Follows every snapshot until the work is done, and counts the snapshots in which no pod took requests.
async fn outages(bench: &Bench, app: &str, work: impl Future<Output = ()>) -> usize {
    let mut snapshots = bench.service(app).subscribe();
    let mut outages = 0;
    let watch = async {
        loop {
            let snapshot = snapshots.changed().await;
            outages += usize::from(!snapshot.routable());
        }
    };
    tokio::select! {
        () = watch => unreachable!("it goes on"),
        () = work => {}
    }
    outages
}

#[tokio::test]
async fn a_restart_replaces_every_pod_and_one_always_serves() {
    for count in [1, 3] {
        let bench = Bench::new([pinned("hello", count)]);
        let count = count as usize;
        let before = bench.ready("hello", count).await;
        let mut most = 0;
        let work = async {
            bench.engine.restart("hello").unwrap();
            bench.becomes("hello", "rolling", |app| app.rolling).await;
            let is_over = |app: &rouse_local::engine::AppStatus| {
                let staying = [PodStage::Starting, PodStage::Ready];
                most = most.max(app.pods.iter().filter(|pod| staying.contains(&pod.phase)).count());
                !app.rolling && app.pods.len() == count
            };
            bench.becomes("hello", "rolled out", is_over).await;
        };
        assert_eq!(outages(&bench, "hello", work).await, 0);
        let after = bench.ready("hello", count).await;
        assert!(uids(&after).iter().all(|uid| !uids(&before).contains(uid)));
        assert!(most <= count + 1, "{most} pods at a time");
        assert!(pids(&before).iter().all(|pid| !is_alive(*pid)));
        bench.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_go_on_through_restarts() {
    let bench = Arc::new(Bench::new([pinned("hello", 2)]));
    bench.ready("hello", 2).await;
    let mut clients = JoinSet::new();
    for seed in 0..4 {
        let port = bench.port("hello");
        clients.spawn(async move {
            let mut served = 0;
            loop {
                let ask = SlotRequest { seed: seed + served, ..SlotRequest::default() };
                let Ok(mut slot) = port.acquire(ask, std::future::pending()).await else { return served };
                let address = slot.endpoint().addresses[0];
                let connected = tokio::net::TcpStream::connect(address).await;
                connected.unwrap_or_else(|error| panic!("{address}: {error}, {:?}", slot.endpoint()));
                slot.connected();
                slot.answered();
                served += 1;
            }
        });
    }
    for _ in 0..3 {
        let before = uids(&bench.status("hello"));
        bench.engine.restart("hello").unwrap();
        bench
            .becomes("hello", "rolled out", |app| {
                app.pods.len() == 2 && uids(app).iter().all(|uid| !before.contains(uid)) && !app.rolling
            })
            .await;
    }
    bench.registry.shut_down();
    bench.engine.scale("hello", Some(0)).unwrap();
    let served = async {
        let mut served = 0;
        while let Some(client) = clients.join_next().await {
            served += client.unwrap();
        }
        served
    };
    assert!(timeout(GENEROUS, served).await.unwrap() > 0);
    Arc::into_inner(bench).unwrap().end().await;
}

#[tokio::test]
async fn a_new_version_that_never_gets_ready_leaves_the_old_one_in_service() {
    let mut bench = Bench::new([pinned("hello", 2)]);
    let before = bench.ready("hello", 2).await;
    bench
        .until(
            "both are ready",
            |_, what| matches!(what, AppEventKind::Ready { pod, .. } if &**pod == "hello-2"),
        )
        .await;
    let mut broken = script("hello", "echo not today >&2; exec sleep 1000");
    broken.policy = policy(|settings| settings.min = 2);
    bench.apply([broken]);
    let status = bench
        .becomes("hello", "in trouble", |app| {
            app.trouble.as_deref().is_some_and(|text| text.contains("not today"))
        })
        .await;
    assert!(status.rolling && status.pods.len() == 3);
    let kept: Vec<_> = status.pods.iter().filter(|pod| pod.phase == PodStage::Ready).collect();
    assert!(kept.iter().all(|pod| uids(&before).contains(&pod.uid)) && kept.len() == 2);
    // The next version replaces both.
    bench.apply([pinned("hello", 2)]);
    let is_over = |app: &rouse_local::engine::AppStatus| !app.rolling && app.pods.len() == 2;
    let after = bench.becomes("hello", "rolled out", is_over).await;
    assert!(uids(&after).iter().all(|uid| !uids(&status).contains(uid)));
    bench.ready("hello", 2).await;
    bench.end().await;
}

#[tokio::test]
async fn a_reload_touches_what_changed_and_nothing_else() {
    let mut bench = Bench::new([pinned("same", 1), pinned("env", 1), pinned("scale", 1), pinned("gone", 1)]);
    let mut before = Vec::new();
    for app in ["same", "env", "scale", "gone"] {
        before.push(bench.ready(app, 1).await);
    }
    let gone = bench.port("gone");
    let mut env = pinned("env", 1);
    env.command.env.insert("GREETING".into(), "hi".into());
    bench.apply([pinned("new", 1), env, pinned("scale", 2), pinned("same", 1)]);
    bench.until("it is removed", |app, what| app == "gone" && *what == AppEventKind::Removed).await;
    let error = gone.acquire(SlotRequest::default(), std::future::pending()).await.unwrap_err();
    assert_eq!(error, AcquireError::ServiceGone);
    assert!(!is_alive(before[3].pods[0].pid));
    bench.ready("new", 1).await;
    let scaled = bench.ready("scale", 2).await;
    let rolled = bench.becomes("env", "replaced", |app| !app.rolling && uids(app) != uids(&before[1])).await;
    assert_eq!(rolled.pods.len(), 1);
    assert_eq!(pids(&bench.status("same")), pids(&before[0]));
    assert!(pids(&scaled).contains(&before[2].pods[0].pid));
    let order: Vec<_> = bench.engine.apps().iter().map(|app| app.service.name().to_owned()).collect();
    assert_eq!(order, ["new", "env", "scale", "same"]);
    assert!(bench.engine.restart("gone").is_err() && bench.engine.log("gone").is_none());
    bench.end().await;
}

#[tokio::test]
async fn a_removed_app_finishes_its_requests_and_can_come_back() {
    let mut bench = Bench::new([server("hello")]);
    let slot = bench.request("hello").await;
    bench.until("it is ready", |_, what| is_ready(what)).await;
    bench.apply([]);
    bench.becomes("hello", "draining", |app| app.pods[0].phase == PodStage::Draining).await;
    assert_eq!(bench.meanwhile().await, []);
    // Added again before it is gone: the service is still the same, and the next request gets a pod.
    let service = bench.service("hello");
    bench.apply([server("hello")]);
    drop(slot);
    bench.until("the old pod is gone", |_, what| is_exited(what)).await;
    assert!(Arc::ptr_eq(&service, &bench.service("hello")));
    drop(bench.request("hello").await);
    bench.apply([]);
    bench.until("it is removed", |_, what| *what == AppEventKind::Removed).await;
    bench.apply([server("hello")]);
    drop(bench.request("hello").await);
    assert!(!Arc::ptr_eq(&service, &bench.service("hello")));
    bench.end().await;
}

#[tokio::test]
async fn a_stop_ends_everything_also_what_is_just_starting() {
    let mut bench = Bench::new([pinned("many", 4), script("slow", "exec sleep 1000"), server("asleep")]);
    bench.ready("many", 4).await;
    bench.wait_in_line("slow");
    let pids = pids(&bench.status("many"));
    let engine = Arc::clone(&bench.engine);
    timeout(GENEROUS, engine.stop()).await.unwrap();
    assert!(pids.iter().all(|pid| !is_alive(*pid)));
    assert!(engine.apps().iter().all(|app| app.pods.is_empty()));
    assert_eq!(endpoints(&bench.service("many").snapshot()).len(), 0);
    // The engine starts no further pod.
    bench.wait_in_line("asleep");
    bench.apply([pinned("late", 1)]);
    let seen = bench.meanwhile().await;
    let after_stop = seen.iter().rev().take_while(|what| !is_exited(what));
    assert!(!after_stop.clone().any(is_started));
    assert!(bench.status("late").pods.is_empty());
    bench.end().await;
}

#[tokio::test]
async fn a_second_order_to_stop_kills() {
    let mut deaf = script("deaf", "trap '' TERM; while true; do sleep 0.1; done");
    deaf.policy = policy(|settings| settings.min = 1);
    deaf.stop_grace = Duration::from_hours(1);
    let bench = Bench::new([deaf]);
    bench.becomes("deaf", "running", |app| app.pods.len() == 1).await;
    let engine = Arc::clone(&bench.engine);
    let mut stopping = JoinSet::new();
    stopping.spawn(async move { engine.stop().await });
    bench.becomes("deaf", "stopping", |app| app.pods[0].phase == PodStage::Stopping).await;
    bench.engine.stop_now();
    timeout(GENEROUS, stopping.join_next()).await.unwrap();
    assert!(bench.status("deaf").pods.is_empty());
    let service = bench.service("deaf");
    assert!(endpoints(&service.snapshot()).iter().all(|endpoint| endpoint.state == State::Gone));
    bench.end().await;
}
