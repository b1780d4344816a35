//! Scaling in the local engine: from zero, up, down, and back to zero.

use std::time::Duration;

use rouse_core::endpoint::{Source, State};
use rouse_local::engine::{AppEventKind, PodStage, PortChoice, Readiness};
use tokio::time::timeout;

use crate::harness::{
    Bench, GENEROUS, count, endpoints, free_port, is_alive, is_exited, is_ready, is_started, is_stopping,
    pids, policy, script, serve_after, server, uids,
};

#[tokio::test]
async fn a_request_brings_an_app_up_from_zero() {
    let mut bench = Bench::new([server("hello")]);
    assert_eq!(bench.meanwhile().await, [AppEventKind::Declared], "no request asked for it");
    let slot = bench.request("hello").await;
    assert!(slot.cold_start());
    let endpoint = slot.endpoint();
    assert_eq!((endpoint.state, endpoint.source), (State::Ready, Source::Probe));
    assert_eq!(endpoint.pod.as_ref().unwrap().name.as_ref(), "local/hello-1");
    let seen = bench.until("it is ready", |_, what| is_ready(what)).await;
    assert!(matches!(
        seen.as_slice(),
        [
            AppEventKind::Wake,
            AppEventKind::Scaled { from: 0, to: 1, .. },
            AppEventKind::Started { .. },
            AppEventKind::Ready { .. }
        ]
    ));
    let status = bench.ready("hello", 1).await;
    assert_eq!(status.pods[0].address, endpoint.addresses[0]);
    assert_eq!((status.desired, status.pinned, status.rolling), (1, None, false));
    bench.end().await;
}

#[tokio::test]
async fn every_kind_of_readiness_and_port_works() {
    let mut http = server("http");
    http.readiness = Readiness::Http("/healthz?x=1".into());
    let mut fixed = server("fixed");
    let number = free_port();
    fixed.port = PortChoice::Fixed(number.try_into().unwrap());
    let bench = Bench::new([http, fixed]);
    bench.request("http").await;
    bench.engine.scale("fixed", Some(2)).unwrap();
    let status = bench.ready("fixed", 2).await;
    assert!(status.pods.iter().all(|pod| pod.address.port() == number));
    assert_ne!(status.pods[0].address, status.pods[1].address);
    bench.end().await;
}

#[tokio::test]
async fn wakes_that_are_repeated_start_one_process() {
    // The start takes longer than core's first repeated wakes.
    let mut bench = Bench::new([script("slow", &serve_after("sleep 1"))]);
    bench.wait_in_line("slow");
    let mut seen = bench.until("it runs", |_, what| is_started(what)).await;
    for _ in 0..1000 {
        bench.wake("slow");
    }
    seen.extend(bench.until("it is ready", |_, what| is_ready(what)).await);
    assert_eq!(seen.iter().filter(|what| is_started(what)).count(), 1);
    assert_eq!(seen.iter().filter(|what| **what == AppEventKind::Wake).count(), 1);
    bench.end().await;
}

#[tokio::test]
async fn an_idle_app_goes_to_zero_and_a_request_keeps_it_up() {
    let mut app = server("hello");
    app.policy = policy(|settings| settings.idle_after = Duration::from_millis(300));
    let mut bench = Bench::new([app]);
    let slot = bench.request("hello").await;
    let pid = bench.ready("hello", 1).await.pods[0].pid;
    bench.until("it is ready", |_, what| is_ready(what)).await;
    // Longer than idle-after.
    for _ in 0..3 {
        assert_eq!(bench.meanwhile().await, [], "a request is in flight");
    }
    drop(slot);
    let seen = bench.until("it is gone", |_, what| is_exited(what)).await;
    assert!(
        matches!(
            seen.as_slice(),
            [
                AppEventKind::Scaled { from: 1, to: 0, .. },
                AppEventKind::Stopping { .. },
                AppEventKind::Exited { expected: true, .. }
            ]
        ),
        "{seen:?}"
    );
    assert!(!is_alive(pid));
    assert_eq!(endpoints(&bench.service("hello").snapshot()).len(), 0);
    assert_eq!(bench.status("hello").desired, 0);
    drop(bench.request("hello").await);
    bench.end().await;
}

#[tokio::test]
async fn there_are_never_more_pods_than_max() {
    let mut app = server("busy");
    app.policy = policy(|settings| (settings.max, settings.concurrency) = (2, Some(1.0)));
    let mut bench = Bench::new([app]);
    for _ in 0..20 {
        bench.wait_in_line("busy");
    }
    bench.ready("busy", 2).await;
    let mut seen = Vec::new();
    // Beyond two reports.
    for _ in 0..6 {
        seen.extend(bench.meanwhile().await);
        assert_eq!(bench.status("busy").pods.len(), 2);
    }
    assert_eq!(seen.iter().filter(|what| is_started(what)).count(), 2, "{seen:?}");
    bench.end().await;
}

#[tokio::test]
async fn the_minimum_is_there_without_a_request() {
    let mut app = server("two");
    app.policy = policy(|settings| settings.min = 2);
    let bench = Bench::new([app]);
    let status = bench.ready("two", 2).await;
    let names: Vec<_> = status.pods.iter().map(|pod| pod.name.as_ref()).collect();
    assert_eq!(names, ["two-1", "two-2"]);
    bench.end().await;
}

#[tokio::test]
async fn a_schedule_keeps_pods_without_a_request_at_its_times_only() {
    let scheduled = |schedule: Option<&str>| {
        let mut app = server("hello");
        app.policy = policy(|settings| {
            settings.schedule = schedule.map(|text| text.parse().unwrap()).unwrap_or_default();
            settings.idle_after = Duration::from_millis(300);
        });
        app
    };
    // The wall clock of the bench shows Monday, 8:30 UTC.
    let mut bench = Bench::new([scheduled(Some("Mon 09:00-18:00 UTC = 3; Tue 00:00-24:00 UTC = 3"))]);
    assert_eq!(bench.meanwhile().await, [AppEventKind::Declared], "not yet");
    bench.apply([scheduled(Some("Mon 09:00-18:00 Europe/Berlin = 2"))]);
    let status = bench.ready("hello", 2).await;
    assert_eq!(status.reason, "the load needs fewer pods, but this is what the schedule says");
    // Longer than idle-after.
    bench.meanwhile().await;
    assert_eq!(bench.status("hello").desired, 2);
    bench.apply([scheduled(None)]);
    bench.becomes("hello", "without pods", |status| status.pods.is_empty()).await;
    bench.end().await;
}

#[tokio::test]
async fn a_pin_holds_until_the_request_after_a_pin_at_zero() {
    let bench = Bench::new([server("hello")]);
    bench.engine.scale("hello", Some(3)).unwrap();
    let three = bench.ready("hello", 3).await;
    assert_eq!((three.pinned, three.desired), (Some(3), 3));
    bench.engine.scale("hello", Some(0)).unwrap();
    bench.becomes("hello", "without pods", |status| status.pods.is_empty()).await;
    assert!(pids(&three).iter().all(|pid| !is_alive(*pid)));
    drop(bench.request("hello").await);
    let status = bench.ready("hello", 1).await;
    assert_eq!((status.pinned, status.desired), (None, 1));
    assert!(!uids(&three).contains(&status.pods[0].uid));
    assert_eq!(bench.engine.scale("nobody", None).unwrap_err().to_string(), "there is no app \"nobody\"");
    bench.end().await;
}

#[tokio::test]
async fn a_pod_with_a_request_is_not_signalled_before_the_request_is_over() {
    let mut bench = Bench::new([server("hello")]);
    let slot = bench.request("hello").await;
    bench.until("it is ready", |_, what| is_ready(what)).await;
    bench.engine.scale("hello", Some(0)).unwrap();
    bench.becomes("hello", "draining", |app| app.pods[0].phase == PodStage::Draining).await;
    let service = bench.service("hello");
    assert_eq!(count(&service, State::Draining), 1);
    let seen = bench.meanwhile().await;
    assert!(matches!(seen.as_slice(), [AppEventKind::Scaled { from: 1, to: 0, .. }]), "{seen:?}");
    drop(slot);
    let seen = bench.until("it is gone", |_, what| is_exited(what)).await;
    assert!(is_stopping(&seen[0]));
    bench.end().await;
}

#[tokio::test]
async fn a_request_that_never_ends_delays_a_stop_no_longer_than_the_grace() {
    let mut app = server("hello");
    app.stop_grace = Duration::from_millis(100);
    let mut bench = Bench::new([app]);
    let _slot = bench.request("hello").await;
    bench.engine.scale("hello", Some(0)).unwrap();
    bench.until("it is gone", |_, what| is_exited(what)).await;
    bench.end().await;
}

#[tokio::test]
async fn a_request_for_the_last_pod_on_its_way_out_brings_another() {
    let mut bench = Bench::new([server("hello")]);
    let slot = bench.request("hello").await;
    let first = bench.ready("hello", 1).await;
    bench.engine.scale("hello", Some(0)).unwrap();
    bench.becomes("hello", "draining", |app| app.pods[0].phase == PodStage::Draining).await;
    // The terminating pod serves it, and another pod starts afterwards.
    let second = bench.request("hello").await;
    assert_eq!(second.endpoint().addresses, slot.endpoint().addresses);
    bench
        .until(
            "there are two",
            |_, what| matches!(what, AppEventKind::Ready { pod, .. } if &**pod == "hello-2"),
        )
        .await;
    drop((slot, second));
    let status = bench.ready("hello", 1).await;
    assert_ne!(uids(&status), uids(&first));
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn requests_that_race_with_the_way_to_zero_all_get_a_pod() {
    let bench = Bench::new([server("hello")]);
    for _ in 0..10 {
        drop(bench.request("hello").await);
        bench.engine.scale("hello", Some(0)).unwrap();
        for _ in 0..20 {
            let slot = bench.request("hello").await;
            let pod = slot.endpoint().pod.as_ref().unwrap().uid.clone();
            // It lives as long as its request does.
            tokio::task::yield_now().await;
            let status = bench.status("hello");
            let signalled = |phase| phase == PodStage::Stopping;
            assert!(!status.pods.iter().any(|one| one.uid == pod && signalled(one.phase)), "{status:?}");
        }
    }
    drop(timeout(GENEROUS, bench.request("hello")).await.unwrap());
    bench.end().await;
}
