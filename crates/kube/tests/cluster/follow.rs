//! Watches: what the gateway sees, what it keeps when a watch breaks, and what it logs.

use std::time::Duration;

use http::Method;
use rouse_core::endpoint::State;
use rouse_core::hold::AcquireError;
use rouse_core::service::SlotRequest;
use rouse_kube::client::watch::WatchState;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::rig::{
    HTTP_SCALED_OBJECT, ROUTES, Rig, SLICES, annotated, cart, event_texts, id, pass, route, service, slice,
    synced,
};
use rouse_testkit::api_server::ApiServer;

/// Service `cart` with three ready pods.
fn shop() -> ApiServer {
    let api = cart(&[1, 2]);
    api.put(SLICES, slice("cart-b", "cart", &[3]));
    api
}

/// An API server, and a gateway that has seen everything and watches slices.
async fn watching(api: ApiServer) -> (ApiServer, Rig) {
    let rig = Rig::synced(&api).await;
    rig.until_watched(SLICES).await;
    (api, rig)
}

fn pod(namespace: &str, name: &str, ip: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": namespace, "uid": name}, "spec": {}, "status": {"podIPs": [{"ip": ip}]}})
}

#[tokio::test(start_paused = true)]
async fn slices_reach_the_registry_and_follow_the_cluster() {
    let (api, rig) = synced(shop()).await;
    assert_eq!(rig.ready("cart"), 3);
    let mut changed = slice("cart-b", "cart", &[3, 4]);
    changed["endpoints"][0]["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
    api.put(SLICES, changed);
    rig.until("the change is seen", |rig| {
        rig.endpoints("cart").contains(&(State::Draining, "10.0.0.3:8080".into()))
    })
    .await;
    assert_eq!(rig.ready("cart"), 3);
    api.delete(SLICES, "shop", "cart-a");
    rig.until_ready("the deletion is seen", 1).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_leads_to_a_new_list_that_never_empties_a_service() {
    let (api, rig) = watching(shop()).await;
    let mut snapshots = rig.registry.get(&id("cart")).unwrap().subscribe();
    drop(snapshots.changed().await);
    // While watches send no events, one pod goes and another comes.
    api.set_silent(true);
    api.put(SLICES, slice("cart-a", "cart", &[2, 5]));
    api.delete(SLICES, "shop", "cart-b");
    api.set_silent(false);
    api.expire();
    let snapshot = timeout(Duration::from_mins(10), snapshots.changed()).await.expect("a new list");
    let addresses: Vec<String> =
        snapshot.ports[0].endpoints().iter().map(|endpoint| endpoint.addresses[0].to_string()).collect();
    assert_eq!(addresses, ["10.0.0.2:8080", "10.0.0.5:8080"], "from the old set to the new one in one step");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_old_version_refused_by_status_leads_to_a_new_list_too() {
    let (api, rig) = watching(shop()).await;
    let lists = rig.cluster.watches()[0].lists;
    api.end_watches();
    api.refuse(Method::GET, "endpointslices watch=true", 410, "gone", Some(1));
    api.put(SLICES, slice("cart-b", "cart", &[3, 4]));
    rig.until_ready("the new list is seen", 4).await;
    assert!(rig.cluster.watches()[0].lists > lists);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn after_a_cut_nothing_is_missed() {
    let (api, rig) = synced(shop()).await;
    for n in 4..10_u8 {
        rig.until_watched(SLICES).await;
        api.cut();
        let pods: Vec<u8> = (3..=n).collect();
        api.put(SLICES, slice("cart-b", "cart", &pods));
        rig.until_ready("the change is seen", usize::from(n)).await;
    }
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_goes_on_from_its_last_bookmark() {
    let (api, rig) = watching(shop()).await;
    let lists = rig.cluster.watches()[0].lists;
    api.bookmark();
    let marked = api.version();
    pass(Duration::from_millis(10)).await;
    api.end_watches();
    rig.until_watched(SLICES).await;
    let watches =
        api.requests(|request| request.path.ends_with("endpointslices") && request.query.contains("watch"));
    let last = &watches.last().unwrap().query;
    assert!(
        last.contains(&format!("resourceVersion={marked}")) && last.contains("allowWatchBookmarks=true"),
        "{last}"
    );
    assert_eq!(rig.cluster.watches()[0].lists, lists, "no new list is needed");
    rig.stop().await;
}

/// Restores the server to version `backup`, before slice `cart-c`. Later writes reuse versions that were seen before.
fn restore(api: &ApiServer, backup: u64) {
    api.restore(backup, |object| object["metadata"]["name"] != "cart-c");
    api.put(SLICES, slice("cart-d", "cart", &[8, 9]));
}

/// Waits until the pods of slice `cart-d` are seen, and the pod of `cart-c` is gone.
async fn until_restored(rig: &Rig) {
    rig.until("what is there now is seen, and what is not is gone", |rig| {
        let all = rig.endpoints("cart");
        all.len() == 5 && !all.iter().any(|(_, address)| address == "10.0.0.7:8080")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn when_the_revision_goes_back_everything_is_listed_anew() {
    let api = shop();
    let backup = api.version();
    let (api, rig) = watching(api).await;
    for _ in 0..50 {
        api.put(SLICES, slice("cart-c", "cart", &[7]));
    }
    rig.until_ready("it is seen", 4).await;
    restore(&api, backup);
    until_restored(&rig).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_died_without_a_word_is_given_up() {
    let (api, rig) = watching(shop()).await;
    api.set_silent(true);
    api.put(SLICES, slice("cart-b", "cart", &[3, 4]));
    api.set_silent(false);
    rig.until_ready("the change is seen after all", 4).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_went_back_and_past_us_in_silence_is_listed_anew() {
    let api = shop();
    let backup = api.version();
    let (api, rig) = watching(api).await;
    api.put(SLICES, slice("cart-c", "cart", &[7]));
    rig.until_ready("it is seen", 4).await;
    api.set_silent(true);
    restore(&api, backup);
    // None of these objects matters to the gateway, but the version exceeds the last one that it saw.
    for _ in 0..50 {
        api.put(SLICES, slice("other-a", "other", &[20]));
    }
    api.set_silent(false);
    until_restored(&rig).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_every_watch_at_once_is_not_asked_without_end() {
    let api = shop();
    api.end_watches_at_once();
    let rig = Rig::synced(&api).await;
    pass(Duration::from_mins(5)).await;
    let requests = api.requests(|request| request.path.ends_with("endpointslices")).len();
    assert!(requests < 120, "{requests} requests in five minutes");
    api.put(SLICES, slice("cart-b", "cart", &[3, 4]));
    rig.until_ready("changes are seen", 4).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_the_api_server_the_last_word_stands_and_is_called_stale() {
    let api = shop();
    api.put(ROUTES, route("r", "shop.example.com", "cart"));
    let (api, rig) = watching(api).await;
    let stale = |rig: &Rig| rig.registry.get(&id("cart")).unwrap().snapshot().stale;
    api.set_down(true);
    pass(Duration::from_secs(5)).await;
    assert!(!stale(&rig), "a short break does not count");
    pass(Duration::from_mins(1)).await;
    assert!(stale(&rig));
    assert_eq!(rig.ready("cart"), 3);
    assert!(rig.cluster.is_synced() && rig.plan("shop/r").is_some());
    let report = rig.cluster.watches().remove(0);
    let WatchState::Broken { why, .. } = report.state else { panic!("{report:?}") };
    assert!(why.contains("cannot be reached") && why.contains("connection refused"), "{why}");
    api.put(SLICES, slice("cart-b", "cart", &[]));
    api.set_down(false);
    rig.until("it is back, with what happened meanwhile", |rig| !stale(rig) && rig.ready("cart") == 2).await;
    assert_eq!(rig.cluster.watches()[0].state, WatchState::Following);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn kinds_that_are_not_installed_are_no_error_and_are_found_later() {
    let api = shop();
    api.set_missing(ROUTES, true);
    api.set_missing(HTTP_SCALED_OBJECT, true);
    let rig = Rig::synced(&api).await;
    assert_eq!(rig.cluster.watches()[2].state, WatchState::Missing);
    api.set_missing(ROUTES, false);
    api.put(ROUTES, route("r", "shop.example.com", "cart"));
    rig.until("the route is seen", |rig| rig.plan("shop/r").is_some()).await;
    // After a restart the API server may not know its custom kinds for a moment.
    api.set_missing(ROUTES, true);
    api.cut();
    rig.until("it is missed", |rig| rig.cluster.watches()[2].state == WatchState::Missing).await;
    pass(Duration::from_secs(1)).await;
    assert!(rig.plan("shop/r").is_some(), "a kind that is missing empties nothing");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_installed_counts_as_empty_is_reported_once_and_is_listed_less_and_less() {
    for (kind, name, place) in [(ROUTES, "InterceptorRoute", 2), (HTTP_SCALED_OBJECT, "HTTPScaledObject", 3)]
    {
        let api = shop();
        api.set_missing(kind, true);
        let rig = Rig::start(&api);
        let mut events = rig.cluster.events();
        rig.wait_synced().await;
        let report = rig.cluster.watches().remove(place);
        assert_eq!((report.kind, &report.state, report.synced), (name, &WatchState::Missing, true));
        let plural = kind.split_once('/').unwrap().1;
        let looks = |rig: &Rig| rig.api.requests(|request| request.path.ends_with(plural)).len();
        pass(Duration::from_secs(5)).await;
        let soon = looks(&rig);
        assert!((3..=6).contains(&soon), "{soon} looks in five seconds");
        pass(Duration::from_mins(10)).await;
        let later = looks(&rig) - soon;
        assert!((20..=45).contains(&later), "{later} looks in ten minutes");
        let reported = event_texts(&mut events);
        assert_eq!(
            reported
                .iter()
                .filter(|reported| reported.contains(name) && reported.contains("Missing"))
                .count(),
            1,
            "{name}"
        );
        api.set_missing(kind, false);
        rig.until("it is followed", |rig| rig.cluster.watches()[place].state == WatchState::Following).await;
        rig.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_may_not_be_listed_is_waited_for_and_the_permission_is_named() {
    let api = shop();
    api.refuse(Method::GET, "/httpscaledobjects", 403, "not you", None);
    for (namespace, place) in [(None, "in all namespaces"), (Some("shop".to_owned()), "in namespace shop")] {
        let rig = Rig::with(&api, |settings| settings.namespace = namespace);
        pass(Duration::from_mins(1)).await;
        assert!(!rig.cluster.is_synced(), "half the truth would be 404s for the other half");
        let report = rig.cluster.watches().remove(3);
        let WatchState::Broken { why, .. } = report.state else { panic!("{report:?}") };
        let resource = "httpscaledobjects.http.keda.sh";
        let words = format!("the permission to list and watch {resource} {place} is missing: not you");
        assert_eq!(why, words);
        rig.stop().await;
    }
    let rig = Rig::start(&api);
    api.allow_all();
    rig.wait_synced().await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_object_that_cannot_be_read_does_not_spoil_the_others() {
    let api = shop();
    let mut invalid = slice("invalid", "cart", &[9]);
    invalid["addressType"] = json!("IPv9");
    api.put(SLICES, invalid.clone());
    let rig = Rig::start(&api);
    let mut events = rig.cluster.events();
    rig.wait_synced().await;
    assert_eq!(rig.ready("cart"), 3);
    api.put(SLICES, invalid);
    api.put(SLICES, slice("cart-b", "cart", &[3, 4]));
    rig.until_ready("the next change is seen", 4).await;
    let reported = event_texts(&mut events);
    assert!(
        reported.iter().any(|reported| reported.contains("EndpointSlice shop/invalid cannot be read")),
        "{reported:?}"
    );
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_published_before_everything_was_seen_once() {
    let api = shop();
    api.put(ROUTES, route("r", "shop.example.com", "cart"));
    api.refuse(Method::GET, "/services", 500, "not yet", None);
    let rig = Rig::start(&api);
    pass(Duration::from_mins(1)).await;
    assert!(!rig.cluster.is_synced() && rig.plan("shop/r").is_none());
    api.allow_all();
    rig.wait_synced().await;
    assert!(rig.plan("shop/r").unwrap().target.is_ok());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn slices_may_come_before_their_service_and_stay_after_it() {
    let api = ApiServer::default();
    api.put(SLICES, slice("cart-a", "cart", &[1]));
    let rig = Rig::synced(&api).await;
    assert!(rig.registry.get(&id("cart")).is_none());
    api.put("services", service("cart"));
    rig.until_ready("both are there", 1).await;
    let gone = rig.registry.get(&id("cart")).unwrap();
    api.delete("services", "shop", "cart");
    rig.until("it is gone", |rig| rig.registry.get(&id("cart")).is_none()).await;
    let port = gone.port(&rouse_core::endpoint::PortName::new("http")).unwrap();
    let reported = port.acquire(SlotRequest::default(), std::future::pending()).await;
    assert_eq!(reported.err(), Some(AcquireError::ServiceGone), "a request that waits fails");
    // The slice is not written again, but it is still there.
    api.put("services", service("cart"));
    rig.until_ready("its slice is found again", 1).await;
    rig.stop().await;
}

/// A gateway whose operator lets the Services of namespace `shop` opt in to endpoints without a pod.
async fn listed(api: &ApiServer) -> Rig {
    Rig::synced_with(api, |settings| settings.manual_endpoints_of = ["shop".to_owned()].into()).await
}

#[tokio::test(start_paused = true)]
async fn endpoints_without_a_pod_need_the_opt_in_of_the_operator() {
    let api = ApiServer::default();
    let mut manual = slice("cart-a", "cart", &[1, 2]);
    manual["endpoints"][1].as_object_mut().unwrap().remove("targetRef");
    api.put(SLICES, manual);
    api.put("services", service("cart"));
    let rig = listed(&api).await;
    assert_eq!(rig.ready("cart"), 1);
    api.put("services", annotated(service("cart"), json!({"rouse.dev/manual-endpoints": "allow"})));
    rig.until_ready("they count", 2).await;
    api.put("services", service("cart"));
    rig.until_ready("they do not count any more", 1).await;
    rig.stop().await;
    let everywhere = Rig::synced_with(&api, |settings| settings.manual_endpoints = true).await;
    assert_eq!(everywhere.ready("cart"), 2);
    everywhere.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_is_a_pod_only_where_that_pod_is() {
    let (api, rig) = synced(cart(&[1])).await;
    assert_eq!(rig.ready("cart"), 1);
    // Endpoints of a missing pod, of a pod with another address, and of a pod in another namespace.
    api.put("pods", pod("shop", "cart-8", "10.0.0.80"));
    api.put("pods", pod("other", "cart-9", "10.0.0.9"));
    api.put_alone(SLICES, slice("cart-b", "cart", &[7, 8, 9]));
    // Events arrive in order: after this one, the gateway has seen the others.
    api.put(SLICES, slice("cart-c", "cart", &[2]));
    rig.until_ready("the other slice is seen", 2).await;
    // The pod may come after its slice.
    api.put("pods", pod("shop", "cart-7", "10.0.0.7"));
    rig.until_ready("it is believed", 3).await;
    api.put("pods", pod("shop", "cart-8", "10.0.0.8"));
    rig.until_ready("it has another address now", 4).await;
    let ips = |n: u8| [std::net::IpAddr::from([10, 0, 0, n])];
    let uid = rouse_core::endpoint::PodUid::new("cart-8");
    assert!(rig.cluster.pods().plan(&uid, &ips(8), 80, true).is_some());
    assert!(rig.cluster.pods().plan(&uid, &ips(9), 80, true).is_none(), "no other is asked in its name");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn slices_of_a_service_that_selects_no_pods_count_as_written_by_hand() {
    let api = ApiServer::default();
    let bare = |annotations: Value| {
        let mut bare = annotated(service("cart"), annotations);
        bare["spec"].as_object_mut().unwrap().remove("selector");
        bare
    };
    api.put("services", bare(json!({})));
    api.put(SLICES, slice("cart-a", "cart", &[1]));
    let rig = listed(&api).await;
    assert_eq!(rig.ready("cart"), 0);
    api.put("services", bare(json!({"rouse.dev/manual-endpoints": "allow"})));
    rig.until_ready("they count", 1).await;
    api.put("services", bare(json!({})));
    rig.until_ready("they do not count any more", 0).await;
    api.put("services", service("cart"));
    rig.until_ready("it selects them", 1).await;
    rig.stop().await;
}

/// A gateway that may not send requests for pods that fit `refused`, and Service `cart` with a slice of one pod that does
/// not exist.
async fn without_permission(refused: &str) -> (ApiServer, Rig) {
    let api = ApiServer::default();
    api.put("services", service("cart"));
    api.put_alone(SLICES, slice("cart-a", "cart", &[1]));
    api.refuse(Method::GET, refused, 403, "Forbidden", None);
    let rig = Rig::synced(&api).await;
    (api, rig)
}

#[tokio::test(start_paused = true)]
async fn slices_are_believed_where_pods_may_not_be_seen() {
    let (api, rig) = without_permission("/api/v1/pods").await;
    assert_eq!(rig.ready("cart"), 1);
    pass(Duration::from_secs(30)).await;
    assert_eq!(rig.ready("cart"), 1);
    api.allow_all();
    rig.until_ready("the pods are seen, and it is none of them", 0).await;
    pass(Duration::from_secs(30)).await;
    assert_eq!(rig.ready("cart"), 0, "that stays so");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn slices_are_believed_where_pods_may_be_listed_and_not_watched() {
    let (_api, rig) = without_permission("/api/v1/pods watch=true").await;
    pass(Duration::from_secs(30)).await;
    for _ in 0..100 {
        assert_eq!(rig.ready("cart"), 1);
        pass(Duration::from_millis(500)).await;
    }
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_was_a_pod_is_none_when_the_pod_is_gone() {
    let (api, rig) = synced(cart(&[1, 2])).await;
    assert_eq!(rig.ready("cart"), 2);
    // Long after the start, because the start itself triggers a look.
    pass(Duration::from_mins(1)).await;
    // Another pod has its address now, and it has a new one.
    let began = Instant::now();
    api.put("pods", pod("shop", "cart-2", "10.0.0.3"));
    rig.until_ready("it is not there any more", 1).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    api.delete("pods", "shop", "cart-1");
    rig.until_ready("the slice alone is not believed", 0).await;
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_pods_that_hangs_delays_new_pods_for_seconds_only() {
    let (api, rig) = synced(shop()).await;
    assert_eq!(rig.ready("cart"), 3);
    let began = Instant::now();
    api.set_silent(true);
    api.put("pods", pod("shop", "cart-9", "10.0.0.9"));
    api.set_silent(false);
    api.put_alone(SLICES, slice("cart-c", "cart", &[9]));
    rig.until_ready("the new pod gets requests", 4).await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_slice_of_pods_that_do_not_exist_does_not_cause_endless_lists() {
    let (api, rig) = synced(shop()).await;
    let lists = || {
        let list = |path: &str, query: &str| path == "/api/v1/pods" && !query.contains("watch");
        api.requests(|request| list(&request.path, &request.query)).len()
    };
    let before = lists();
    api.put_alone(SLICES, slice("cart-c", "cart", &[9]));
    pass(Duration::from_mins(1)).await;
    assert_eq!(lists() - before, 1, "once, to make sure");
    assert_eq!(rig.ready("cart"), 3);
    pass(Duration::from_mins(2)).await;
    assert_eq!(lists() - before, 1);
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_namespace_sees_nothing_of_another() {
    let api = shop();
    let mut other = service("cart");
    other["metadata"]["namespace"] = json!("other");
    api.put("services", other);
    let rig = Rig::synced_with(&api, |settings| settings.namespace = Some("shop".into())).await;
    assert_eq!(rig.registry.services().len(), 1);
    let outside = api.requests(|request| !request.path.contains("/namespaces/shop/"));
    assert!(outside.is_empty(), "{outside:?}");
    rig.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_say_how_they_may_be_probed() {
    let api = shop();
    let pod = |name: &str, probe: Value| {
        json!({"metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "cart"}},
               "spec": {"containers": [{"name": "c", "readinessProbe": probe}]},
               "status": {"podIPs": [{"ip": "10.0.0.1"}]}})
    };
    api.put("pods", pod("a", json!({"httpGet": {"port": 8080, "path": "/ready"}})));
    api.put("pods", pod("b", json!({"exec": {"command": ["true"]}})));
    let rig = Rig::synced(&api).await;
    let uid = rouse_core::endpoint::PodUid::new;
    rig.until("the pods are seen", |rig| rig.cluster.pods().get(&uid("b")).is_some()).await;
    let pods = rig.cluster.pods();
    assert_eq!(pods.plan(&uid("a"), &[], 80, true).unwrap().0.checks().len(), 1);
    assert!(pods.plan(&uid("b"), &[], 80, true).is_none(), "no probe is possible");
    assert_eq!(pods.get(&uid("a")).unwrap().labels["app"], "cart");
    api.delete("pods", "shop", "a");
    rig.until("it is gone", |rig| rig.cluster.pods().get(&uid("a")).is_none()).await;
    let mut ended = pod("b", json!({}));
    ended["status"]["phase"] = json!("Failed");
    api.put("pods", ended);
    rig.until("one that ended is gone too", |rig| rig.cluster.pods().get(&uid("b")).is_none()).await;
    rig.stop().await;
}
