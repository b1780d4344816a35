//! How long changes of pods take until they are published, as the metric has it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use prometheus_client::registry::Registry as Metrics;
use rouse_core::endpoint::{PodRef, PodUid, PortName, SlicePort};
use rouse_core::merge::{Push, PushEvent, PushOrder};
use serde_json::{Value, json};

use crate::rig::{Rig, SLICES, id, pass, service, slice};
use rouse_testkit::api_server::ApiServer;

/// 2026-01-01T00:00:00Z, in seconds since 1970.
const NEW_YEAR: u64 = 1_767_225_600;

/// A time of day that only this test moves. It begins at the new year.
macro_rules! time_of_day {
    ($set:ident, $now:ident) => {
        static MILLIS: AtomicU64 = AtomicU64::new(0);
        let $now: fn() -> SystemTime = || {
            SystemTime::UNIX_EPOCH
                + Duration::from_secs(NEW_YEAR)
                + Duration::from_millis(MILLIS.load(Ordering::SeqCst))
        };
        let $set = |millis| MILLIS.store(millis, Ordering::SeqCst);
    };
}

fn at(second: u32) -> String {
    format!("2026-01-01T00:00:{second:02}Z")
}

/// Pod `cart-N`, as [`slice`] names it; `ready`: the second in which it became ready.
fn pod(n: u8, ready: Option<u32>) -> Value {
    let status = if ready.is_some() { "True" } else { "False" };
    let condition =
        json!({"type": "Ready", "status": status, "lastTransitionTime": at(ready.unwrap_or_default())});
    json!({"metadata": {"name": format!("cart-{n}"), "namespace": "shop", "uid": format!("cart-{n}")},
           "spec": {}, "status": {"podIPs": [{"ip": format!("10.0.0.{n}")}], "conditions": [condition]}})
}

/// The pod, whose deletion was requested in that second.
fn leaving(mut pod: Value, second: u32) -> Value {
    pod["metadata"]["deletionTimestamp"] = json!(at(second + 30));
    pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    pod
}

/// A slice of pod `cart-1` with these conditions: ready, serving, terminating.
fn one(conditions: [bool; 3]) -> Value {
    let mut slice = slice("cart-a", "cart", &[1]);
    let [ready, serving, terminating] = conditions;
    slice["endpoints"][0]["conditions"] =
        json!({"ready": ready, "serving": serving, "terminating": terminating});
    slice
}

const STARTING: [bool; 3] = [false, false, false];
const READY: [bool; 3] = [true, true, false];
const LEAVING: [bool; 3] = [false, true, true];

struct Meter(Rig, Metrics);

impl Meter {
    async fn start(api: &ApiServer, time_of_day: fn() -> SystemTime) -> Self {
        let rig = Rig::synced_with(api, |settings| settings.routes.time_of_day = time_of_day).await;
        rig.until_watched("pods").await;
        rig.until_watched(SLICES).await;
        let mut metrics = Metrics::default();
        rig.cluster.register_metrics(&mut metrics);
        Self(rig, metrics)
    }

    /// The number of samples and their sum in seconds.
    fn samples(&self, edge: &str) -> (u64, f64) {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.1).unwrap();
        let value = |part: &str| {
            let series = format!("rouse_endpoint_propagation_seconds_{part}{{edge=\"{edge}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&series)).unwrap().to_owned()
        };
        (value("count").parse().unwrap(), value("sum").parse().unwrap())
    }

    /// Lets the watches deliver, and asserts the samples.
    async fn check(&self, edge: &str, count: u64, sum: f64) {
        pass(Duration::from_millis(50)).await;
        let (counted, summed) = self.samples(edge);
        assert!(
            counted == count && (summed - sum).abs() < 1e-6,
            "{edge}: {counted}, {summed}; not {count}, {sum}"
        );
    }
}

/// Service `cart` with one pod that is starting.
fn shop() -> ApiServer {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put("pods", pod(1, None));
    api.put(SLICES, one(STARTING));
    api
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_becomes_ready_is_measured_until_its_slice_is_published() {
    time_of_day!(set, now);
    let api = shop();
    let meter = Meter::start(&api, now).await;
    meter.check("ready", 0, 0.0).await;
    set(2300);
    api.put("pods", pod(1, Some(2)));
    meter.check("ready", 0, 0.0).await;
    set(5800);
    api.put(SLICES, one(READY));
    meter.check("ready", 1, 3.8).await;
    // Further versions of both are no change.
    set(9000);
    api.put("pods", pod(1, Some(2)));
    api.put(SLICES, one(READY));
    meter.check("ready", 1, 3.8).await;
    meter.check("terminating", 0, 0.0).await;
    meter.0.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_slice_may_be_seen_before_its_pod() {
    time_of_day!(set, now);
    let api = shop();
    let meter = Meter::start(&api, now).await;
    set(4500);
    api.put(SLICES, one(READY));
    meter.check("ready", 0, 0.0).await;
    set(9000);
    api.put("pods", pod(1, Some(4)));
    meter.check("ready", 1, 0.5).await;
    // A clock of a node that is ahead of ours.
    api.put("pods", pod(1, None));
    api.put(SLICES, one(STARTING));
    meter.check("ready", 1, 0.5).await;
    api.put("pods", pod(1, Some(30)));
    meter.check("ready", 1, 0.5).await;
    api.put(SLICES, one(READY));
    meter.check("ready", 2, 0.5).await;
    meter.0.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_is_measured_from_its_request_and_not_from_the_end_of_the_grace_period() {
    time_of_day!(set, now);
    let api = shop();
    api.put("pods", pod(1, Some(1)));
    api.put(SLICES, one(READY));
    let meter = Meter::start(&api, now).await;
    set(20_400);
    api.put("pods", leaving(pod(1, Some(1)), 20));
    set(22_000);
    api.put(SLICES, one(LEAVING));
    meter.check("terminating", 1, 2.0).await;
    meter.check("ready", 0, 0.0).await;
    meter.0.stop().await;
}

#[tokio::test(start_paused = true)]
async fn each_time_that_a_pod_becomes_ready_counts() {
    time_of_day!(set, now);
    let api = shop();
    let meter = Meter::start(&api, now).await;
    for round in 1..=3_u32 {
        let second = 10 * round;
        api.put("pods", pod(1, Some(second)));
        set(u64::from(second) * 1000 + 1000);
        api.put(SLICES, one(READY));
        meter.check("ready", round.into(), f64::from(round)).await;
        api.put(SLICES, one(STARTING));
        api.put("pods", pod(1, None));
    }
    meter.0.stop().await;
}

#[tokio::test(start_paused = true)]
async fn changes_that_a_list_shows_are_not_measured_since_they_may_be_old() {
    time_of_day!(set, now);
    let api = shop();
    let meter = Meter::start(&api, now).await;
    set(50_000);
    api.set_silent(true);
    api.put("pods", pod(1, Some(2)));
    api.put(SLICES, one(READY));
    api.set_silent(false);
    api.expire();
    meter.0.until_ready("it was listed", 1).await;
    meter.0.until_watched("pods").await;
    api.put(SLICES, one(READY));
    meter.check("ready", 0, 0.0).await;
    meter.0.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_was_seen_as_it_happened_counts_also_if_a_list_publishes_it() {
    time_of_day!(set, now);
    let api = shop();
    let meter = Meter::start(&api, now).await;
    api.put("pods", pod(1, Some(2)));
    meter.check("ready", 0, 0.0).await;
    set(30_000);
    api.set_silent(true);
    api.put(SLICES, one(READY));
    api.set_silent(false);
    api.expire();
    meter.0.until_ready("it was listed", 1).await;
    meter.check("ready", 1, 28.0).await;
    meter.0.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_push_that_is_faster_than_the_status_of_the_pod_counts_as_zero() {
    time_of_day!(set, now);
    let api = shop();
    let meter = Meter::start(&api, now).await;
    let push = Push {
        pod: PodRef { uid: PodUid::new("cart-1"), name: "shop/cart-1".into() },
        order: PushOrder { boot: rouse_core::merge::BootId { started: 1, id: 1 }, sequence: 1 },
        ips: vec!["10.0.0.1".parse().unwrap()],
        owns_addresses: true,
        ports: vec![SlicePort { name: PortName::new("http"), number: 8080 }],
        event: PushEvent::Ready,
    };
    meter.0.registry.get(&id("cart")).unwrap().push(push).unwrap();
    meter.0.until_ready("it is pushed", 1).await;
    api.put("pods", pod(1, Some(2)));
    set(9000);
    api.put(SLICES, one(READY));
    meter.check("ready", 1, 0.0).await;
    meter.0.stop().await;
}
