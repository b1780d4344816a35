//! Rolling updates and scaling under load without a failed request: 300 requests a second, open loop, no client retries.
//!
//! Pods honour their grace period: after SIGTERM they serve for a while, then fail their readiness probe, and end when
//! requests stop.

use std::collections::BTreeSet;
use std::time::Duration;

use rouse_e2e::client::load::{Load, Tally};
use rouse_e2e::gateway::Gateway;
use rouse_e2e::wait::patiently;
use serde_json::json;
use tokio::time::Instant;

use crate::app::{App, merge};
use crate::harness::{Case, trial};
use crate::test_namespace::{DEPLOYMENT, Kind, POD, TestNamespace};

pub(crate) const TRIALS: &[Case] = &[
    trial!(nothing_fails_while_five_pods_are_replaced).once(),
    trial!(nothing_fails_while_five_pods_are_replaced_behind_the_service).once(),
    trial!(nothing_fails_while_five_pods_become_one_and_five_again).once(),
    trial!(the_last_pod_serves_while_it_terminates_until_its_successor_is_ready).once(),
    trial!(nothing_fails_while_a_stateful_set_has_no_pod_at_all).once(),
];

const STATEFUL_SET: Kind = ("apps/v1", "StatefulSet");
/// Requests a second.
const RATE: u32 = 300;

/// How long a trial lasts: `ROUSE_LOAD_SECONDS`, or 20.
pub(crate) fn seconds() -> u64 {
    std::env::var("ROUSE_LOAD_SECONDS")
        .map_or(20, |text| text.parse().expect("ROUSE_LOAD_SECONDS is a number"))
}

/// An app whose pods keep serving after SIGTERM until all gateways know that they are terminating.
fn app(replicas: u32) -> App {
    App::new("shop").replicas(replicas).env("LOG_REQUESTS", 0).env("TERM_DELAY_MS", 10_000).grace(60)
}

/// Runs `act` repeatedly under load, at least once.
pub(crate) async fn under_load(
    space: &TestNamespace,
    gateway: &Gateway,
    mut act: impl AsyncFnMut(u32),
) -> Tally {
    let load = Load::on(&gateway.target(&space.host("shop")), RATE);
    let end = Instant::now() + Duration::from_secs(seconds());
    load.flows(100).await;
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < end {
        rounds += 1;
        act(rounds).await;
        load.flows(100).await;
    }
    let tally = load.stop().await;
    let Tally { succeeded, failed, slowest } = &tally;
    eprintln!(
        "{rounds} rounds, {succeeded} requests succeeded, the slowest in {slowest:?}; failed: {failed:?}"
    );
    tally
}

/// The UIDs of the app's pods that are not terminating.
async fn uids(space: &TestNamespace) -> BTreeSet<String> {
    let pods = space.list(POD, "app=shop").await;
    let stays = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    stays.map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
}

/// Changes the pod template, and waits until `count` new pods are ready.
pub(crate) async fn roll(space: &TestNamespace, kind: Kind, round: u32, count: usize) {
    let before = uids(space).await;
    let change = json!({ "metadata": { "annotations": { "round": round.to_string() } } });
    space.patch(kind, "shop", json!({ "spec": { "template": change } })).await;
    replaced(space, &before, count).await;
}

async fn replaced(space: &TestNamespace, before: &BTreeSet<String>, count: usize) {
    patiently("other pods", async || uids(space).await.is_disjoint(before).then_some(())).await;
    space.ready_pods("shop", count).await;
}

async fn rolling_update(space: &TestNamespace, mode: &str) -> Tally {
    space.serve(&app(5)).await;
    space.ready_pods("shop", 5).await;
    let gateway = space.gateway_in_mode(mode).await;
    let tally = under_load(space, &gateway, async |round| roll(space, DEPLOYMENT, round, 5).await).await;
    gateway.stop().await;
    tally
}

async fn nothing_fails_while_five_pods_are_replaced(space: TestNamespace) {
    rolling_update(&space, "always").await.assert_perfect();
}

async fn nothing_fails_while_five_pods_are_replaced_behind_the_service(space: TestNamespace) {
    rolling_update(&space, "disabled").await.assert_perfect();
}

async fn nothing_fails_while_five_pods_become_one_and_five_again(space: TestNamespace) {
    space.serve(&app(5)).await;
    space.ready_pods("shop", 5).await;
    let gateway = space.gateway().await;
    let tally = under_load(&space, &gateway, async |_| {
        space.scale("shop", 1).await;
        patiently("the others to be gone", async || {
            (space.list(POD, "app=shop").await.len() == 1).then_some(())
        })
        .await;
        space.ready_pods("shop", 1).await;
        space.scale("shop", 5).await;
        space.ready_pods("shop", 5).await;
    })
    .await;
    tally.assert_perfect();
    gateway.stop().await;
}

async fn the_last_pod_serves_while_it_terminates_until_its_successor_is_ready(space: TestNamespace) {
    // The new pod starts slowly, and the old one keeps serving for longer.
    let app = app(1).env("START_DELAY_MS", 2_000).env("TERM_DELAY_MS", 40_000);
    space.serve(&app).await;
    space.ready_pods("shop", 1).await;
    let gateway = space.gateway().await;
    let tally = under_load(&space, &gateway, async |_| {
        let before = uids(&space).await;
        let [pod] = &space.pods("shop").await[..] else { panic!("one pod") };
        space.delete(POD, &pod.name).await;
        replaced(&space, &before, 1).await;
    })
    .await;
    tally.assert_perfect();
    let metrics = gateway.admin.metrics().await;
    let to_draining = metrics.sum("rouse_requests_to_draining_total", &[]);
    assert!(to_draining > 0.0, "the old pod served while it was on its way out");
    gateway.stop().await;
}

async fn nothing_fails_while_a_stateful_set_has_no_pod_at_all(space: TestNamespace) {
    let app = app(1);
    let mut set = app.deployment();
    merge(&mut set, &json!({ "kind": "StatefulSet", "spec": { "serviceName": "shop" } }));
    space.apply(set).await;
    space.apply(app.service()).await;
    space.apply(space.route("shop").object()).await;
    space.ready_pods("shop", 1).await;
    let gateway = space.gateway().await;
    let tally = under_load(&space, &gateway, async |round| roll(&space, STATEFUL_SET, round, 1).await).await;
    tally.assert_perfect();
    let metrics = gateway.admin.metrics().await;
    let to_draining = metrics.sum("rouse_requests_to_draining_total", &[]);
    assert!(to_draining > 0.0, "the old pod served while it was on its way out");
    let held = metrics.sum("rouse_hold_duration_seconds_count", &[]);
    assert!(held > 0.0, "there was a time without any pod");
    gateway.stop().await;
}
