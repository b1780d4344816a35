//! Envoys send requests past the gateways: xds replicas report them, and are asked before zero.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

use http::Method;
use prometheus_client::encoding::text::encode;
use rouse_core::endpoint::ServiceId;
use rouse_core::scale::{EnvoyId, EnvoyLoad, EnvoyServices, EnvoyState, EnvoyUpdate, Reporter};
use rouse_core::time::Moment;
use rouse_kube::autoscale::{AutoscaleCollector, AutoscaleController, ScaledRouteLoad, ZeroRequests};
use rouse_testkit::api_server::ApiServer;
use serde_json::json;

use super::rig::{Scene, running, scaled_route, shop};
use crate::rig::{DEPLOYMENTS, ROUTES, SCALED_OBJECT, id, route, service};

/// The xds replicas' side of the report channel.
#[derive(Default)]
struct Replicas {
    controller: Mutex<Weak<AutoscaleController>>,
    /// Those that answer at once.
    answering: Mutex<BTreeSet<String>>,
    parked: Mutex<BTreeMap<ServiceId, u64>>,
    said: Mutex<Vec<&'static str>>,
}

impl Replicas {
    fn of(scene: &Scene) -> Arc<Self> {
        let replicas = Arc::<Self>::default();
        *replicas.controller.lock().unwrap() = Arc::downgrade(scene.autoscaler());
        scene.autoscaler().set_zero_requests(Box::new(ToReplicas(Arc::clone(&replicas))));
        replicas
    }

    fn answer_at_once(&self, name: &str) {
        self.answering.lock().unwrap().insert(name.to_owned());
        self.answer(name);
    }

    /// A replica says what it has parked: all that it was asked for.
    fn answer(&self, name: &str) {
        let controller = self.controller.lock().unwrap().upgrade().unwrap();
        let parked = self.parked.lock().unwrap().clone();
        controller.parked(&Reporter::new(name), &parked);
    }

    fn answer_all(&self) {
        let answering = self.answering.lock().unwrap().clone();
        for name in &answering {
            self.answer(name);
        }
    }

    fn said(&self, what: &str) -> usize {
        self.said.lock().unwrap().iter().filter(|said| **said == what).count()
    }
}

struct ToReplicas(Arc<Replicas>);

impl ZeroRequests for ToReplicas {
    fn prepare_zero(&self, service: &ServiceId, id: u64) {
        assert!(id != 0);
        self.0.said.lock().unwrap().push("prepare");
        self.0.parked.lock().unwrap().insert(service.clone(), id);
        self.0.answer_all();
    }

    fn cancel_zero(&self, service: &ServiceId, id: u64) {
        self.0.said.lock().unwrap().push("cancel");
        let mut parked = self.0.parked.lock().unwrap();
        if parked.get(service) == Some(&id) {
            parked.remove(service);
        }
        drop(parked);
        self.0.answer_all();
    }
}

/// An xds replica says of its Envoy `edge-1`, which may send requests to `cart`, whether it reports.
fn say(scene: &Scene, replica: &str, reports: bool) {
    let load = if reports { EnvoyLoad::Reported } else { EnvoyLoad::Silent { since: Moment::ZERO } };
    let state = EnvoyState { load, services: EnvoyServices::Named([id("cart")].into()) };
    let envoys = vec![(EnvoyId::new("", "edge-1"), Some(state))];
    for controller in &scene.controllers {
        let update = EnvoyUpdate { complete: true, envoys: envoys.clone() };
        controller.autoscaler.heard_envoys(&Reporter::new(replica), update);
    }
}

async fn with_xds(api: ApiServer, names: &[&str]) -> (Scene, Arc<Replicas>) {
    let mut scene = Scene::new(api).await;
    let replicas = Replicas::of(&scene);
    for name in names {
        scene.join_xds(name);
    }
    (scene, replicas)
}

/// The metric of this name and state.
fn envoys(scene: &mut Scene, state: &str) -> String {
    let mut metrics = prometheus_client::registry::Registry::default();
    AutoscaleCollector::register(Arc::clone(scene.autoscaler()), &mut metrics);
    let mut text = String::new();
    encode(&mut text, &metrics).unwrap();
    let series = format!("rouse_autoscaler_envoys{{state=\"{state}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&*series)).unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn what_envoys_send_past_the_gateways_is_load() {
    let (mut scene, replicas) = with_xds(shop(1), &["xds-1"]).await;
    replicas.answer_at_once("xds-1");
    scene.load("xds-1", "cart", 25, 0);
    scene.until_replicas("cart", 3).await;
    scene.load("xds-1", "cart", 0, 0);
    scene.until_replicas("cart", 0).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_xds_replica_that_is_silent_keeps_the_pods() {
    let (mut scene, replicas) = with_xds(shop(1), &["xds-1"]).await;
    replicas.answer_at_once("xds-1");
    scene.seconds(20).await;
    scene.silence("xds-1", true);
    scene.seconds(200).await;
    assert_eq!(scene.view("cart").unwrap().blocked.unwrap().0, "reporter_silent");
    assert!(!scene.autoscaler().knows_load());
    scene.leave_xds("xds-1");
    scene.until_replicas("cart", 0).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_envoy_keeps_the_pods_until_any_replica_hears_it() {
    let (mut scene, replicas) = with_xds(shop(3), &["xds-1", "xds-2"]).await;
    replicas.answer_at_once("xds-1");
    replicas.answer_at_once("xds-2");
    say(&scene, "xds-1", false);
    scene.seconds(300).await;
    assert_eq!(scene.writes(), []);
    let (status, message) = scene.until_reason("r", "BlockedBySilentEnvoy").await;
    assert_eq!(status, "False");
    assert!(
        message.contains("not scaled down while Envoy edge-1 may send it requests but reports no load"),
        "{message}"
    );
    let (explained, _) = scene.autoscaler().explain(&id("cart")).remove(0);
    assert_eq!(explained.blocked.unwrap().0, "envoy_silent");
    assert_eq!((envoys(&mut scene, "silent"), envoys(&mut scene, "heard")), ("1".into(), "0".into()));
    // Load is still followed up.
    scene.load("gw-1", "cart", 45, 0);
    scene.until_replicas("cart", 5).await;
    scene.load("gw-1", "cart", 0, 0);
    scene.seconds(200).await;
    assert_eq!(scene.replicas("cart"), 5);
    say(&scene, "xds-2", true);
    scene.until_replicas("cart", 0).await;
    assert_eq!(envoys(&mut scene, "heard"), "1");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_envoys_of_an_xds_replica_that_is_gone_keep_the_pods_for_ten_minutes() {
    let (mut scene, _) = with_xds(shop(1), &["xds-1"]).await;
    say(&scene, "xds-1", true);
    scene.seconds(10).await;
    scene.leave_xds("xds-1");
    scene.seconds(595).await;
    assert_eq!(scene.writes(), []);
    assert_eq!(scene.view("cart").unwrap().blocked.unwrap().0, "envoy_silent");
    scene.seconds(10).await;
    assert_eq!(scene.replicas("cart"), 0);
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_gateway_nothing_is_scaled_down_whatever_xds_replicas_say() {
    let (mut scene, replicas) = with_xds(shop(1), &["xds-1"]).await;
    replicas.answer_at_once("xds-1");
    scene.api.put_alone(crate::rig::SLICES, super::rig::gateway_slice(&[]));
    scene.seconds(300).await;
    assert_eq!(scene.writes(), []);
    assert_eq!(scene.view("cart").unwrap().blocked.unwrap().0, "no_reporters");
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn zero_is_written_when_the_last_replica_has_answered() {
    let (mut scene, replicas) = with_xds(shop(1), &["xds-1", "xds-2"]).await;
    replicas.answer_at_once("xds-1");
    scene.until("it was asked", |_| replicas.said("prepare") == 1).await;
    scene.seconds(28).await;
    assert_eq!((scene.writes(), replicas.said("cancel")), (vec![], 0));
    scene.seconds(4).await;
    assert_eq!(replicas.said("cancel"), 1, "after 30 seconds it is taken back");
    assert_eq!(scene.view("cart").unwrap().blocked.unwrap().0, "not_prepared");
    scene.until("it is asked again", |_| replicas.said("prepare") == 2).await;
    assert_eq!(scene.writes(), []);
    replicas.answer_at_once("xds-2");
    scene.until_replicas("cart", 0).await;
    assert_eq!((replicas.said("prepare"), replicas.said("cancel")), (2, 1));
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_leaves_is_not_waited_for_and_one_that_joins_is_asked() {
    let (mut scene, replicas) = with_xds(shop(1), &["xds-1", "xds-2"]).await;
    replicas.answer_at_once("xds-1");
    scene.until("it was asked", |_| replicas.said("prepare") == 1).await;
    // All have answered, and within the next two seconds another one joins.
    scene.leave_xds("xds-2");
    scene.seconds(1).await;
    scene.join_xds("xds-3");
    scene.seconds(20).await;
    assert_eq!((scene.writes(), replicas.said("prepare")), (vec![], 2));
    replicas.answer_at_once("xds-3");
    scene.until_replicas("cart", 0).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_joins_after_the_last_answer_and_before_the_write_is_asked_too() {
    let (mut scene, replicas) = with_xds(shop(1), &["xds-1"]).await;
    replicas.answer_at_once("xds-1");
    // The first write fails: the preparation is done, and zero is not written.
    scene.api.refuse(Method::PATCH, "/scale", 500, "etcd is slow", Some(1));
    scene.until("it was tried", |scene| !scene.api.patches("scale").is_empty()).await;
    scene.join_xds("xds-2");
    scene.seconds(25).await;
    assert_eq!((scene.replicas("cart"), scene.api.patches("scale").len()), (1, 1));
    replicas.answer_at_once("xds-2");
    scene.until_replicas("cart", 0).await;
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn load_that_comes_back_takes_it_back_at_once_and_is_followed() {
    // While a replica has not answered, and between the last answer and the write.
    for answers in [false, true] {
        let (mut scene, replicas) = with_xds(shop(1), &["xds-1"]).await;
        if answers {
            replicas.answer_at_once("xds-1");
        }
        scene.until("it was asked", |_| replicas.said("prepare") == 1).await;
        scene.load("gw-1", "cart", 25, 0);
        scene.seconds(2).await;
        assert_eq!(replicas.said("cancel"), 1, "{answers}");
        assert!(replicas.parked.lock().unwrap().is_empty());
        scene.until_replicas("cart", 3).await;
        assert!(scene.writes().iter().all(|(_, pods)| *pods > 0), "{:?}", scene.writes());
        replicas.answer_at_once("xds-1");
        scene.load("gw-1", "cart", 0, 0);
        scene.until_replicas("cart", 0).await;
        scene.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_leads_no_more_takes_it_back_and_writes_nothing() {
    let (mut scene, replicas) = with_xds(shop(1), &["xds-1"]).await;
    scene.until("it was asked", |_| replicas.said("prepare") == 1).await;
    scene.controllers[0].clock.jump(12);
    assert!(!scene.autoscaler().view().leads);
    replicas.answer_at_once("xds-1");
    scene.until("it is taken back", |_| replicas.said("cancel") == 1).await;
    assert_eq!(scene.writes(), []);
    scene.until("it is elected again", |scene| scene.autoscaler().view().leads).await;
    scene.until_replicas("cart", 0).await;
    scene.stop().await;
}

/// What KEDA is told of the routes, by name.
fn loads(scene: &Scene) -> BTreeMap<String, ScaledRouteLoad> {
    scene.autoscaler().pass_time_of_route_loads();
    let news = scene.autoscaler().new_route_loads().into_iter();
    news.filter_map(|(key, load)| Some((key.name.to_string(), load?))).collect()
}

#[tokio::test(start_paused = true)]
async fn every_route_to_a_service_is_active_while_envoys_send_it_requests_and_the_first_is_charged() {
    let api = shop(1);
    api.put(ROUTES, route("a", "a.example.com", "cart"));
    api.put("services", service("other"));
    api.put(DEPLOYMENTS, running("other", 0));
    api.put(ROUTES, route("other", "other.example.com", "other"));
    let (mut scene, _) = with_xds(api, &["xds-1"]).await;
    // What it says first may be of any time.
    scene.seconds(2).await;
    loads(&scene);
    scene.load("xds-1", "cart", 7, 0);
    scene.seconds(2).await;
    let all = loads(&scene);
    assert_eq!((all["a"].present.total(), all["r"].present.total()), (7, 0));
    assert!(all["a"].rate > 0.0 && all["r"].rate == 0.0, "{all:?}");
    assert!(all["a"].kept_active && all["r"].kept_active);
    assert!(all.get("other").is_none_or(|load| !load.kept_active && load.present.total() == 0));
    scene.stop().await;
}

#[tokio::test(start_paused = true)]
async fn keda_takes_no_pods_before_every_envoy_sends_requests_to_the_gateways() {
    let api = shop(1);
    let object = json!({"metadata": {"name": "so", "namespace": "shop"},
                        "spec": {"scaleTargetRef": {"name": "cart"}, "triggers": [{"type": "cron", "metadata": {}}]}});
    api.put(SCALED_OBJECT, object);
    api.put(ROUTES, scaled_route(&json!({})));
    let (mut scene, replicas) = with_xds(api, &["xds-1"]).await;
    scene.until("it is asked", |_| replicas.said("prepare") == 1).await;
    assert!(loads(&scene)["r"].kept_active, "not parked yet");
    replicas.answer_at_once("xds-1");
    scene.seconds(1).await;
    assert!(!loads(&scene)["r"].kept_active);
    // Until KEDA writes, it is kept up.
    scene.seconds(60).await;
    assert!((3..=5).contains(&replicas.said("prepare")), "{}", replicas.said("prepare"));
    say(&scene, "xds-1", false);
    scene.seconds(2).await;
    assert_eq!(replicas.said("cancel"), 1);
    assert!(loads(&scene)["r"].kept_active, "an Envoy is silent");
    say(&scene, "xds-1", true);
    scene.seconds(3).await;
    assert!(!loads(&scene).get("r").is_some_and(|load| load.kept_active));
    scene.load("gw-1", "cart", 1, 0);
    scene.seconds(3).await;
    assert_eq!(replicas.said("cancel"), 2, "load is back");
    scene.load("gw-1", "cart", 0, 0);
    // At zero, nothing keeps it active: it would be woken.
    scene.api.put(DEPLOYMENTS, running("cart", 0));
    scene.seconds(3).await;
    assert!(!loads(&scene).get("r").is_some_and(|load| load.kept_active));
    assert!(scene.writes().is_empty());
    scene.stop().await;
}
