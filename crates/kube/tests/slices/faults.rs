//! Stale caches, conflicts, errors of the API server, lost answers, and an etcd that was restored from a backup.

use std::time::Duration;

use http::Method;
use rouse_kube::cluster::ClusterEvent;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::rig::{Rig, SLICES, edit, pass, pod, pod_names, service, shop, unready};
use rouse_testkit::api_server::{ApiServer, InjectedFault};

/// The path of creates alone.
const CREATE: &str = "endpointslices?&fieldManager";

/// A `Status` with more than a code.
fn status(code: u16, reason: &str, details: &Value) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason,
           "reason": reason, "code": code, "details": details})
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_lacks_our_last_write_is_never_acted_upon() {
    let api = shop(&[1]);
    let rig = Rig::settled(&api).await;
    api.hold_events(SLICES);
    api.put("pods", pod("cart", 2));
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs", "cart-2 10.0.0.2:8080 rs"]).await;
    let writes = rig.writes().len();
    for n in 3..9 {
        api.put("pods", pod("cart", n));
        pass(Duration::from_secs(1)).await;
    }
    assert_eq!(rig.writes().len(), writes, "the watch does not show the last write yet");
    assert!(rig.metric("endpoint_slice_controller_syncs{result=\"stale\"}").unwrap() >= 6.0);
    api.release_events(SLICES);
    pass(Duration::from_millis(20)).await;
    assert_eq!(rig.endpoints("cart").len(), 8, "at once, when the watch has caught up");
    rig.settle().await;
    assert_eq!((rig.writes().len(), rig.slices("cart").len()), (writes + 1, 1));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_created_slice_is_not_created_again_before_the_watch_shows_it() {
    let api = shop(&[1]);
    let rig = Rig::start(&api);
    api.hold_events(SLICES);
    rig.until("it is created", |rig| rig.slices("cart").len() == 1).await;
    api.put("pods", pod("cart", 2));
    pass(Duration::from_secs(10)).await;
    assert_eq!(rig.slices("cart").len(), 1);
    api.release_events(SLICES);
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs", "cart-2 10.0.0.2:8080 rs"]).await;
    rig.settle().await;
    assert_eq!(rig.slices("cart").len(), 1);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_never_shows_our_write_is_replaced_by_a_list_after_half_a_minute() {
    let api = shop(&[1]);
    let rig = Rig::settled(&api).await;
    // The event is lost, and the connection stays open.
    api.set_silent(true);
    api.put("pods", pod("cart", 2));
    api.set_silent(false);
    edit(&api, "pods", "cart-1", |pod| pod["metadata"]["labels"]["app"] = json!("other"));
    rig.until("the change of the other pod is seen", |rig| rig.endpoints("cart").is_empty()).await;
    api.set_silent(true);
    let began = Instant::now();
    edit(&api, "pods", "cart-1", |pod| pod["metadata"]["labels"]["app"] = json!("cart"));
    rig.until("pods are listed again", |rig| !rig.endpoints("cart").is_empty()).await;
    assert!(began.elapsed() < Duration::from_mins(4), "{:?}", began.elapsed());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_retried_with_what_the_watch_shows_by_then() {
    let api = shop(&[1]);
    let rig = Rig::settled(&api).await;
    let name = rig.slices("cart")[0]["metadata"]["name"].as_str().unwrap().to_owned();
    api.before_next_write("endpointslices/", move |api| {
        edit(api, SLICES, &name, |slice| slice["metadata"]["annotations"]["note"] = json!("kept"));
    });
    let began = Instant::now();
    api.put("pods", pod("cart", 2));
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs", "cart-2 10.0.0.2:8080 rs"]).await;
    let took = began.elapsed();
    assert!((Duration::from_millis(500)..Duration::from_millis(1100)).contains(&took), "{took:?}");
    assert_eq!(rig.slices("cart")[0]["metadata"]["annotations"]["note"], "kept");
    rig.check_metrics(&[("syncs{result=\"error\"}", 1.0), ("changes{operation=\"update\"}", 1.0)]);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn errors_are_retried_with_growing_pauses_whatever_happens_meanwhile() {
    let api = shop(&[1]);
    api.refuse(Method::POST, "endpointslices", 403, "no permission", Some(4));
    let rig = Rig::start(&api);
    let mut events = rig.controller.events();
    let began = Instant::now();
    for n in 2..10 {
        pass(Duration::from_millis(200)).await;
        api.put("pods", pod("cart", n));
    }
    rig.until("it is reported", |rig| !rig.controller.problems().is_empty()).await;
    let (service, problem) = rig.controller.problems().pop_first().unwrap();
    assert_eq!((service.to_string().as_str(), problem.why.as_str()), ("shop/cart", "no permission"));
    assert_eq!(rig.metric("rouse_endpointslice_failing_services"), Some(1.0));
    rig.until("it is created", |rig| rig.endpoints("cart").len() == 9).await;
    // 1, 2, 4 and 8 s, each with half of it as jitter.
    let took = began.elapsed();
    assert!((Duration::from_millis(7500)..Duration::from_secs(16)).contains(&took), "{took:?}");
    rig.settle().await;
    assert_eq!(rig.writes().len(), 5, "changes of pods did not repeat the failing request");
    assert!(rig.controller.problems().is_empty());
    assert_eq!(rig.metric("rouse_endpointslice_failing_services"), Some(0.0));
    rig.check_metrics(&[("syncs{result=\"error\"}", 4.0)]);
    let failures: Vec<bool> = std::iter::from_fn(|| events.try_recv().ok())
        .filter_map(|event| match event {
            ClusterEvent::SliceSyncFailed { again, .. } => Some(again),
            _ => None,
        })
        .collect();
    assert_eq!(failures, [false, true, true, true], "the log has it once");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_pause_is_at_least_what_the_api_server_asks_for() {
    let api = shop(&[1]);
    let busy = status(429, "TooManyRequests", &json!({"retryAfterSeconds": 20}));
    api.refuse_with(Method::POST, "endpointslices", busy, Some(1));
    let rig = Rig::start(&api);
    rig.until("it was refused", |rig| !rig.controller.problems().is_empty()).await;
    pass(Duration::from_secs(19)).await;
    assert_eq!(rig.writes().len(), 1);
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs"]).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_being_deleted_gets_no_slices_and_no_retries() {
    let api = shop(&[1]);
    let details = json!({"causes": [{"reason": "NamespaceTerminating", "message": "namespace shop is being terminated"}]});
    api.refuse_with(Method::POST, "endpointslices", status(403, "Forbidden", &details), None);
    let rig = Rig::settled(&api).await;
    pass(Duration::from_mins(2)).await;
    assert_eq!(rig.writes().len(), 1);
    assert!(rig.controller.problems().is_empty());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_slice_that_is_refused_does_not_hold_up_the_others_and_nothing_is_deleted_meanwhile() {
    let api = shop(&[1, 2, 3]);
    let rig = Rig::with(&api, |settings| settings.options.max_endpoints_per_slice = "1".parse().unwrap());
    rig.settle().await;
    let of = |pod: &str| {
        let has = |slice: &Value| slice["endpoints"][0]["targetRef"]["name"] == pod;
        let slice = rig.slices("cart").into_iter().find(has)?;
        Some(slice["metadata"]["name"].as_str().unwrap().to_owned())
    };
    let (one, two) = (of("cart-1").unwrap(), of("cart-2").unwrap());
    api.refuse(Method::PATCH, &one, 422, "invalid", None);
    for n in [1, 2] {
        api.put("pods", unready(pod("cart", n), "2025-03-01T00:00:00Z"));
    }
    api.delete("pods", "shop", "cart-3");
    rig.until("the other one is written", |rig| {
        let slices = rig.slices("cart");
        let two = slices.iter().find(|slice| slice["metadata"]["name"] == two).unwrap();
        two["endpoints"][0]["conditions"]["ready"] == false
    })
    .await;
    pass(Duration::from_mins(1)).await;
    assert!(of("cart-3").is_some(), "its slice would be deleted");
    api.allow_all();
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 ", "cart-2 10.0.0.2:8080 "]).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_is_lost_makes_no_second_slice() {
    for fault in [InjectedFault::LoseAnswer, InjectedFault::Hang] {
        let api = shop(&[1]);
        api.trap(CREATE, fault);
        let rig = Rig::start(&api);
        rig.until("the create fails", |rig| !rig.controller.problems().is_empty()).await;
        rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs"]).await;
        rig.settle().await;
        assert_eq!(rig.slices("cart").len(), 1, "{fault:?}");
        let creates = rig.writes();
        assert_eq!(creates.len(), 1, "{fault:?}: {creates:?}");
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_waits_for_a_list_although_the_watch_lags_behind() {
    let api = shop(&[1]);
    let rig = Rig::start(&api);
    rig.until("slices are watched", |rig| rig.api.watchers(SLICES) == 1).await;
    rig.settle().await;
    api.put("services", service("till"));
    rig.settle().await;
    api.hold_events(SLICES);
    api.trap(CREATE, InjectedFault::LoseAnswer);
    api.put("services", service("bank"));
    rig.until("it is applied", |rig| rig.slices("bank").len() == 1).await;
    pass(Duration::from_mins(1)).await;
    assert_eq!(rig.slices("bank").len(), 1);
    assert_eq!(rig.controller.problems().len(), 0, "the list showed it");
    rig.stop().await;
}

/// Slices are written, etcd goes back to before that, and the API server goes on from there.
async fn restored(silent: bool) {
    let api = shop(&[1, 2]);
    let rig = Rig::settled(&api).await;
    let backup = api.version();
    let old = rig.slices("cart").remove(0);
    for n in 3..6 {
        api.put("pods", pod("cart", n));
        rig.settle().await;
    }
    assert_eq!(rig.endpoints("cart").len(), 5);
    api.set_silent(silent);
    api.restore(backup, |object| {
        let name = object["metadata"]["name"].as_str().unwrap();
        !["cart-3", "cart-4", "cart-5"].contains(&name)
    });
    api.put_alone(SLICES, old);
    api.put("pods", pod("cart", 9));
    api.set_silent(false);
    let expected = ["cart-1 10.0.0.1:8080 rs", "cart-2 10.0.0.2:8080 rs", "cart-9 10.0.0.9:8080 rs"];
    rig.until_endpoints("cart", &expected).await;
    rig.settle().await;
    assert_eq!((rig.slices("cart").len(), rig.endpoints("cart")), (1, expected.map(str::to_owned).to_vec()));
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_restore_of_etcd_it_starts_over_from_what_there_is() {
    restored(false).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_restore_of_etcd_that_no_watch_has_noticed_it_starts_over_as_well() {
    restored(true).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_everything_was_listed_once() {
    let api = shop(&[1]);
    api.refuse(Method::GET, "api/v1/nodes", 403, "no permission", None);
    let rig = Rig::start(&api);
    pass(Duration::from_mins(1)).await;
    assert!(rig.writes().is_empty(), "without nodes, no pod would have an endpoint");
    let missing = rig.controller.missing();
    assert!(missing.len() == 1 && missing[0].starts_with("Node (nodes)"), "{missing:?}");
    api.allow_all();
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs"]).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_changes_nothing_and_is_caught_up_with() {
    let api = shop(&[1, 2]);
    let rig = Rig::settled(&api).await;
    api.set_down(true);
    api.put("pods", pod("cart", 3));
    api.delete("pods", "shop", "cart-1");
    pass(Duration::from_mins(2)).await;
    assert_eq!(rig.endpoints("cart"), ["cart-1 10.0.0.1:8080 rs", "cart-2 10.0.0.2:8080 rs"]);
    api.set_down(false);
    rig.until_endpoints("cart", &["cart-2 10.0.0.2:8080 rs", "cart-3 10.0.0.3:8080 rs"]).await;
    rig.settle().await;
    assert_eq!(rig.writes().len(), 2);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn lists_again_after_a_gap_in_the_watches_find_every_change() {
    let api = shop(&[1, 2]);
    let rig = Rig::settled(&api).await;
    for n in 3..8 {
        api.cut();
        api.put("pods", pod("cart", n));
        api.expire();
        api.delete("pods", "shop", &format!("cart-{}", n - 2));
    }
    rig.until_endpoints("cart", &["cart-6 10.0.0.6:8080 rs", "cart-7 10.0.0.7:8080 rs"]).await;
    rig.settle().await;
    assert_eq!(pod_names(&rig.slices("cart")).len(), 2);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_storm_of_changes_stays_within_the_write_rate() {
    let api = ApiServer::default();
    api.put("nodes", crate::rig::node("n1", "a"));
    for n in 0..200 {
        api.put("services", service(&format!("s{n}")));
    }
    let rate = rouse_core::budget::Rate { per_second: 10, burst: 20 };
    let rig = Rig::with(&api, |settings| settings.writes = rate);
    rig.until("the first one is written", |rig| !rig.writes().is_empty()).await;
    for second in 1..=15 {
        pass(Duration::from_secs(1)).await;
        let writes = rig.writes().len();
        assert!(writes <= 21 + 10 * second, "{writes} in {second} s");
    }
    rig.settle().await;
    assert_eq!(rig.writes().len(), 200);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sync_that_panics_is_repeated() {
    let api = shop(&[1]);
    api.trap(CREATE, InjectedFault::Panic);
    let rig = Rig::start(&api);
    rig.until_endpoints("cart", &["cart-1 10.0.0.1:8080 rs"]).await;
    rig.stop().await;
}
