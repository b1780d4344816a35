//! What clients say of responses: acceptance, rejection, and answers that come too late.

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use crate::harness::{Cds, Eds, Lds, Rds, Scene, request};
use crate::proto::service::discovery::v3::DeltaDiscoveryRequest;

thread_local! {
    /// What the test of this thread has logged, while it listens.
    static LINES: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Writes to the lines of the thread. One subscriber serves all tests: with one per test, `tracing` may remember of a place in the code
/// that no subscriber wants it, because another test got there first.
struct ThreadLines;

impl io::Write for ThreadLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.iter_mut().for_each(|lines| lines.extend_from_slice(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The warnings of the server while `work` runs.
async fn warnings_of(work: impl Future<Output = ()>) -> Vec<String> {
    static SUBSCRIBED: Once = Once::new();
    SUBSCRIBED.call_once(|| tracing_subscriber::fmt().with_ansi(false).with_writer(|| ThreadLines).init());
    LINES.set(Some(Vec::new()));
    work.await;
    let log = String::from_utf8(LINES.take().unwrap()).unwrap();
    log.lines().filter(|line| line.contains("WARN rouse_grpc::xds")).map(str::to_owned).collect()
}

#[tokio::test]
async fn while_an_answer_is_awaited_changes_wait_and_then_the_newest_go_together() {
    let scene = Scene::new();
    scene.set(Eds, "a", "1");
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Eds, &["a", "b", "c"]).await;
    let first = envoy.expect("eds a=1 -b -c").await;
    for content in ["2", "3", "4"] {
        scene.set(Eds, "a", content);
        scene.set(Eds, "b", content);
        envoy.expect_nothing().await;
    }
    scene.set(Eds, "c", "1");
    scene.remove(Eds, "c");
    envoy.ack(&first).await;
    envoy.accept("eds a=4 b=4").await;
    envoy.expect_nothing().await;
    assert_eq!(scene.metric("rouse_xds_responses_total{type=\"eds\"}"), 2);
    assert_eq!(scene.metric("rouse_xds_sent_resources_total{type=\"eds\"}"), 5);
    assert_eq!(scene.metric("rouse_xds_acks_total{type=\"eds\"}"), 2);
    assert_eq!(scene.metric("rouse_xds_ack_seconds_count{type=\"eds\"}"), 2);
    assert!(scene.metric("rouse_xds_sent_bytes_total{type=\"eds\"}") > 100);
}

#[tokio::test]
async fn a_change_that_is_taken_back_while_an_answer_is_awaited_sends_nothing() {
    let scene = Scene::new();
    scene.set(Eds, "a", "1");
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Eds, &["a"]).await;
    let first = envoy.expect("eds a=1").await;
    scene.set(Eds, "a", "2");
    envoy.expect_nothing().await;
    scene.set(Eds, "a", "1");
    envoy.ack(&first).await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn types_do_not_wait_for_each_others_answers() {
    let scene = Scene::new();
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Eds, &["a"]).await;
    envoy.expect("eds -a").await;
    envoy.subscribe(Rds, &["a"]).await;
    envoy.expect("rds -a").await;
    envoy.subscribe(Cds, &["a"]).await;
    envoy.expect("cds -a").await;
}

#[tokio::test]
async fn what_was_rejected_is_not_sent_again_until_it_changes() {
    let scene = Scene::new();
    scene.set(Rds, "a", "good");
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Rds, &["a"]).await;
    envoy.accept("rds a=good").await;
    scene.set(Rds, "a", "bad");
    let nonce = envoy.expect("rds a=bad").await;
    let warnings = warnings_of(async {
        envoy.nack(&nonce, "no such filter").await;
        envoy.expect_nothing().await;
    });
    let warnings = warnings.await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    for part in ["rejected resources", "node_id=\"envoy-1\"", "type=\"rds\"", "first=\"a\"", "no such filter"]
    {
        assert!(warnings[0].contains(part), "{part} is not in {}", warnings[0]);
    }
    assert_eq!(scene.metric("rouse_xds_nacks_total{type=\"rds\"}"), 1);
    assert_eq!(scene.metric("rouse_xds_acks_total{type=\"rds\"}"), 1);
    // Another one is sent as ever.
    envoy.subscribe(Rds, &["b"]).await;
    envoy.accept("rds -b").await;
    // What was good before is good again.
    scene.set(Rds, "a", "good");
    envoy.accept("rds a=good").await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn what_was_rejected_is_sent_again_when_it_is_subscribed_again_and_logged_once() {
    let scene = Scene::new();
    scene.set(Lds, "a", "bad");
    let mut envoy = scene.envoy().await;
    let warnings = warnings_of(async {
        for _ in 0..3 {
            envoy.subscribe(Lds, &["a"]).await;
            let nonce = envoy.expect("lds a=bad").await;
            envoy.nack(&nonce, "x\nWARN rouse_grpc::xds forged").await;
        }
        envoy.expect_nothing().await;
        scene.set(Lds, "a", "worse");
        let nonce = envoy.expect("lds a=worse").await;
        envoy.nack(&nonce, "worse").await;
        envoy.expect_nothing().await;
    });
    let warnings = warnings.await;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert_eq!(scene.metric("rouse_xds_nacks_total{type=\"lds\"}"), 4);
}

#[tokio::test]
async fn a_rejection_leaves_other_types_alone() {
    let scene = Scene::new();
    scene.set(Cds, "a", "bad");
    scene.set(Rds, "r", "1");
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Cds, &[]).await;
    let clusters = envoy.expect("cds a=bad").await;
    envoy.subscribe(Rds, &["r"]).await;
    envoy.nack(&clusters, "bad").await;
    // Otherwise one bad cluster would stop all changes of routes.
    envoy.accept("rds r=1").await;
    envoy.expect_nothing().await;
}

#[tokio::test]
async fn a_stale_nonce_is_no_answer_but_its_subscriptions_count() {
    let scene = Scene::new();
    scene.set(Eds, "a", "1");
    let mut envoy = scene.envoy().await;
    envoy.subscribe(Eds, &["a"]).await;
    let first = envoy.expect("eds a=1").await;
    envoy.ack(&first).await;
    scene.set(Eds, "a", "2");
    let second = envoy.expect("eds a=2").await;
    scene.set(Eds, "a", "3");
    envoy.ack(&first).await;
    envoy.nack(&first, "late").await;
    for nonce in ["", "999", "x", "-1"] {
        let stale = DeltaDiscoveryRequest { response_nonce: nonce.into(), ..request(Eds, &["b"], &["a"]) };
        envoy.send(stale).await;
    }
    envoy.expect_nothing().await;
    assert_eq!(scene.metric("rouse_xds_acks_total{type=\"eds\"}"), 1);
    assert_eq!(scene.metric("rouse_xds_nacks_total{type=\"eds\"}"), 0);
    envoy.ack(&second).await;
    // The change of `a` is not wanted any more.
    envoy.accept("eds -b").await;
    envoy.expect_nothing().await;
}
