//! Conditions beside those of other controllers: the gateway does not fight over a condition with them.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::rig::{HTTP_SCALED_OBJECT, ROUTES, Rig, condition, event_texts, observed, pass, shop, synced};
use rouse_testkit::api_server::ApiServer;

#[tokio::test(start_paused = true)]
async fn a_status_that_may_not_be_written_is_tried_again_rarely() {
    let api = shop();
    api.refuse(Method::PATCH, "/status", 403, "not you", None);
    let rig = Rig::synced(&api).await;
    assert!(rig.plan("shop/r").is_some());
    let tries = tries(&rig).await;
    assert!((5..=12).contains(&tries), "{tries} tries in five minutes");
    api.allow_all();
    rig.until_condition("r", "Ready").await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_condition_that_another_writer_changes_is_not_overwritten_again() {
    let (api, rig) = synced(shop()).await;
    rig.until_condition("r", "Ready").await;
    for _ in 0..10 {
        let mut object = api.get(ROUTES, "shop", "r").unwrap();
        object["status"] =
            json!({"conditions": [{"type": "Ready", "status": "False", "reason": "Other", "message": "no"}]});
        api.put(ROUTES, object);
        pass(Duration::from_secs(1)).await;
    }
    assert_eq!(
        api.patches("status").len(),
        2,
        "one write alone, and one beside the other controller's condition"
    );
    rig.stop().await;
}

/// KEDA's operator reconciles route `r`, as it does once for each generation and at its start.
fn keda_looks(api: &ApiServer) {
    let mut object = api.get(ROUTES, "shop", "r").unwrap();
    let said = json!({"type": "Ready", "status": "True", "reason": "Reconciled", "message": "InterceptorRoute reconciled",
        "observedGeneration": object["metadata"]["generation"], "lastTransitionTime": "2024-01-01T00:00:00Z"});
    let conditions = object["status"]["conditions"].take();
    let mut conditions: Vec<Value> = conditions.as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| condition["type"] != "Ready");
    conditions.push(said);
    object["status"]["conditions"] = conditions.into();
    api.put(ROUTES, object);
}

/// The number of status writes that a gateway attempts in five minutes, from its first attempt on.
async fn tries(rig: &Rig) -> usize {
    rig.until("it was tried", |rig| !rig.api.patches("status").is_empty()).await;
    pass(Duration::from_mins(5)).await;
    rig.api.patches("status").len()
}

/// Changes route `r`.
fn change(api: &ApiServer, generation: i64, port: u16) {
    let mut object = api.get(ROUTES, "shop", "r").unwrap();
    object["metadata"]["generation"] = json!(generation);
    object["spec"]["target"]["port"] = json!(port);
    api.put(ROUTES, object);
}

fn by_keda() -> (String, String, String) {
    ("True".to_owned(), "Reconciled".to_owned(), "InterceptorRoute reconciled".to_owned())
}

#[tokio::test(start_paused = true)]
async fn where_ready_is_kedas_the_gateways_say_rouse_ready_beside_it() {
    let api = shop();
    change(&api, 1, 81);
    keda_looks(&api);
    let (one, other) = (Rig::synced(&api).await, Rig::synced(&api).await);
    one.until_condition("r", "RouseReady").await;
    pass(Duration::from_mins(2)).await;
    assert_eq!(one.condition("r", "RouseReady").unwrap().1, "BadPort");
    assert_eq!(one.condition("r", "Ready"), Some(by_keda()));
    let before = (api.version(), api.patches("status").len());
    assert!(before.1 <= 4, "{before:?}");
    one.stop().await;
    other.stop().await;
    let again = Rig::synced(&api).await;
    pass(Duration::from_mins(2)).await;
    assert_eq!((api.version(), api.patches("status").len()), before, "nothing is new");
    change(&api, 2, 82);
    keda_looks(&api);
    again.until("it was seen", |rig| observed(&rig.api, "RouseReady") == Some(2)).await;
    pass(Duration::from_mins(2)).await;
    assert_eq!((observed(&api, "Ready"), again.condition("r", "Ready")), (Some(2), Some(by_keda())));
    again.stop().await;
}

#[tokio::test(start_paused = true)]
async fn ready_changes_hands_when_keda_comes_and_when_it_is_gone() {
    let (api, rig) = synced(shop()).await;
    rig.until_condition("r", "Ready").await;
    keda_looks(&api);
    rig.until_condition("r", "RouseReady").await;
    assert_eq!(rig.condition("r", "Ready"), Some(by_keda()));
    // KEDA is gone: after the first change, it could still be slow.
    change(&api, 2, 81);
    rig.until("the gateway's own condition is current", |rig| observed(&rig.api, "RouseReady") == Some(2))
        .await;
    assert_eq!(rig.condition("r", "Ready"), Some(by_keda()));
    change(&api, 3, 82);
    rig.until("the gateway writes Ready again", |rig| observed(&rig.api, "Ready") == Some(3)).await;
    assert_eq!(rig.condition("r", "Ready").unwrap().1, "BadPort");
    assert_eq!(rig.condition("r", "RouseReady"), None, "one is enough");
    pass(Duration::from_mins(2)).await;
    let writes = api.patches("status").len();
    assert!(writes <= 8, "{writes}");
    rig.stop().await;
}

fn scaled_http() -> Value {
    json!({"metadata": {"name": "old", "namespace": "shop"},
           "spec": {"hosts": ["old.example.com"], "pathPrefixes": ["/a"], "replicas": {"min": 2, "max": 5},
                    "scaleTargetRef": {"name": "cart", "kind": "Deployment", "apiVersion": "apps/v1",
                                       "service": "cart", "port": 80}}})
}

#[tokio::test(start_paused = true)]
async fn an_http_scaled_object_shows_its_claims_and_its_problems() {
    let api = shop();
    let mut object = scaled_http();
    let theirs = json!({"type": "Created", "status": "True", "message": "by KEDA"});
    object["status"] = json!({"conditions": [theirs]});
    api.put(HTTP_SCALED_OBJECT, object.clone());
    let rig = Rig::synced(&api).await;
    assert_eq!(rig.plan("shop/old").unwrap().spec.scaling.min, 2);
    let writes = |rig: &Rig| {
        rig.api.patches("status").iter().filter(|request| request.path.contains("httpscaled")).count()
    };
    pass(Duration::from_mins(1)).await;
    assert_eq!(writes(&rig), 1, "the record of its claims");
    let now = api.get(HTTP_SCALED_OBJECT, "shop", "old").unwrap();
    assert_eq!(now["status"]["conditions"].as_array().unwrap().len(), 2);
    object["status"] = now["status"].clone();
    object["spec"]["scaleTargetRef"]["port"] = json!(81);
    api.put(HTTP_SCALED_OBJECT, object);
    rig.until("the status shows it", |rig| writes(rig) == 2).await;
    let now = api.get(HTTP_SCALED_OBJECT, "shop", "old").unwrap();
    let conditions = now["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions[0], theirs, "the other controller's condition stays");
    assert!(
        conditions[1]["message"].as_str().unwrap().starts_with("Rouse: Service shop/cart has no TCP port 81")
    );
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_keda_writes_meanwhile_is_not_overwritten() {
    let api = shop();
    api.delete(ROUTES, "shop", "r");
    let mut object = scaled_http();
    object["spec"]["scaleTargetRef"]["port"] = json!(81);
    object["status"] = json!({"targetService": "cart:81", "conditions": [{"type": "Ready", "status": "False", "message": "old"}]});
    api.put(HTTP_SCALED_OBJECT, object);
    // Exactly between the gateway's read and its write.
    api.before_next_write("/status", |api| {
        let mut newer = api.get(HTTP_SCALED_OBJECT, "shop", "old").unwrap();
        newer["status"]["conditions"] = json!([{"type": "Ready", "status": "True", "message": "newer"}]);
        api.put(HTTP_SCALED_OBJECT, newer);
    });
    let rig = Rig::synced(&api).await;
    let now = |rig: &Rig| rig.api.get(HTTP_SCALED_OBJECT, "shop", "old").unwrap();
    rig.until("the status shows it", |rig| condition(&now(rig), "RouseReady").is_some()).await;
    assert_eq!(condition(&now(&rig), "Ready").unwrap().2, "newer");
    assert_eq!(now(&rig)["status"]["targetService"], "cart:81");
    pass(Duration::from_mins(2)).await;
    assert_eq!(api.patches("status").len(), 2, "refused once, then written");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_write_is_not_repeated_before_what_overtook_it_was_seen() {
    let api = shop();
    api.refuse(Method::PATCH, "/status", 409, "the object has been modified", None);
    let rig = Rig::synced(&api).await;
    assert_eq!(tries(&rig).await, 1);
    api.allow_all();
    let object = api.get(ROUTES, "shop", "r").unwrap();
    api.put(ROUTES, object);
    rig.until_condition("r", "Ready").await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_status_that_the_definition_refuses_is_reported_once_and_tried_again_when_it_changes() {
    let api = shop();
    api.refuse(Method::PATCH, "/status", 422, "Unsupported value: \"BadPort\"", None);
    let rig = Rig::start(&api);
    let mut events = rig.cluster.events();
    assert_eq!(tries(&rig).await, 1);
    let reported = event_texts(&mut events);
    assert_eq!(
        reported.iter().filter(|reported| reported.contains("status of shop/r: Unsupported value")).count(),
        1,
        "once"
    );
    api.allow_all();
    api.delete("services", "shop", "cart");
    rig.until_condition("r", "NoService").await;
    rig.stop().await;
}
