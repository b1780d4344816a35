//! The retry budget: it limits retries to pods that lose every request, and the number of pods that one request can kill.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rouse_testkit::fakes::READY;
use tokio::task::JoinSet;

use crate::rig::{Options, Pod, Rig};
use crate::wire::Wire;

const UPSTREAM_RESET: &str = "\r\nx-rouse-error: upstream_reset\r\n";

/// Reads each request, counts it, and closes the connection.
fn lose_all(pod: Pod, read: &Arc<AtomicUsize>) -> JoinSet<()> {
    let (mut tasks, read) = (JoinSet::new(), Arc::clone(read));
    tasks.spawn(async move {
        loop {
            let _wire = pod.accept_request().await;
            read.fetch_add(1, Ordering::Relaxed);
        }
    });
    tasks
}

#[tokio::test]
async fn a_service_that_loses_everything_is_asked_a_fifth_more_and_no_other_service_pays_for_it() {
    const REQUESTS: usize = 200;
    /// The retries that a service has before any success.
    const RESERVE: usize = 10;
    let (rig, pods) = Rig::with_pods::<2>(Options::default()).await;
    let read = Arc::<AtomicUsize>::default();
    let _losing: Vec<JoinSet<()>> = pods.into_iter().map(|pod| lose_all(pod, &read)).collect();
    for _ in 0..REQUESTS {
        let answer = rig.get("/").await;
        assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(UPSTREAM_RESET), "{answer}");
    }
    let retries = REQUESTS / 5 + RESERVE;
    assert_eq!(read.load(Ordering::Relaxed), REQUESTS + retries, "as the pods counted");
    assert_eq!(
        rig.metric(r#"rouse_retries_total{reason="reset"}"#),
        retries as u64,
        "the metric counts all retries"
    );
    assert!(rig.metric("rouse_ejections_total") >= 1, "one pod is ejected; the other still gets requests");

    // The other service has its own budget.
    let pod = Pod::new(3).await;
    Rig::slices_of(&rig.add("window"), &[(3, pod.address, READY)]);
    let serving = async {
        pod.accept().await.head().await;
        pod.answer("hello").await
    };
    let mut client = rig.send("GET / HTTP/1.1\r\nHost: window.test\r\nConnection: close\r\n\r\n").await;
    let (answer, _wire) = tokio::join!(client.rest(), serving);
    assert!(answer.ends_with("hello"), "{answer}");
}

/// Answers requests until it reads one for `/poison`: then it closes its listener and all connections.
fn mortal(pod: Pod, deaths: &Arc<AtomicUsize>) -> JoinSet<()> {
    let (mut tasks, deaths) = (JoinSet::new(), Arc::clone(deaths));
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                wire = pod.accept() => drop(connections.spawn(is_poisoned(wire))),
                Some(Ok(true)) = connections.join_next() => break,
            }
        }
        // Counted first, so that a test that sees the end also sees the count.
        deaths.fetch_add(1, Ordering::Relaxed);
    });
    tasks
}

async fn is_poisoned(mut wire: Wire) -> bool {
    while let Some(head) = wire.next_head().await {
        if head.contains(" /poison ") {
            return true;
        }
        wire.answer("hello").await;
    }
    false
}

/// Five pods of which a request for `/poison` kills each that reads it. `warm`: connections to all of them are kept.
async fn deaths_by(request: &str, warm: bool) -> usize {
    let (rig, pods) = Rig::with_pods::<5>(Options::default()).await;
    let deaths = Arc::<AtomicUsize>::default();
    let _living: Vec<JoinSet<()>> = pods.into_iter().map(|pod| mortal(pod, &deaths)).collect();
    for _ in 0..if warm { 100 } else { 0 } {
        assert!(rig.get("/").await.ends_with("hello"));
    }
    let answer = rig.send(request).await.rest().await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(UPSTREAM_RESET), "{answer}");
    let dead = deaths.load(Ordering::Relaxed);
    assert!(rig.get("/").await.ends_with("hello"), "the others serve");
    dead
}

const POISON: &str = "/poison HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\n";

#[tokio::test]
async fn a_get_that_kills_its_pod_kills_one_more_and_not_a_third() {
    for warm in [false, true] {
        for method in ["GET", "DELETE"] {
            let deaths = deaths_by(&format!("{method} {POISON}\r\n"), warm).await;
            assert_eq!(deaths, 2, "{method}, warm: {warm}");
        }
    }
}

#[tokio::test]
async fn a_post_that_kills_its_pod_kills_no_other() {
    for warm in [false, true] {
        for body in [
            "Content-Length: 0\r\n\r\n",
            "Content-Length: 5\r\n\r\nhello",
            "Content-Length: 500\r\n\r\nhello",
        ] {
            let deaths = deaths_by(&format!("POST {POISON}{body}"), warm).await;
            assert_eq!(deaths, 1, "{body:?}, warm: {warm}");
        }
    }
}
#[tokio::test]
async fn requests_lost_with_kept_connections_count_against_the_budget_too() {
    let (rig, pod) = Rig::with_pod(Options::default()).await;
    let read = Arc::<AtomicUsize>::default();
    let (mut tasks, count) = (JoinSet::new(), Arc::clone(&read));
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (mut wire, count) = (pod.accept().await, Arc::clone(&count));
            connections.spawn(async move {
                wire.head().await;
                count.fetch_add(1, Ordering::Relaxed);
                wire.answer("hello").await;
                if wire.next_head().await.is_some() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    // 200 or 502. Two workers, each with its own connections.
    for _ in 0..100 {
        rig.get("/").await;
    }
    let read = read.load(Ordering::Relaxed);
    assert!(read <= 100 + 100 / 5 + 10, "{read}");
}
