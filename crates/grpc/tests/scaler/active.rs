//! Whether a route is active, and when `StreamIsActive` says so.

use std::time::Duration;

use rouse_grpc::scaler::RouteLoad;
use tokio::time::{Instant, sleep_until};
use tonic::Code;

use crate::harness::{Scene, busy, held, idle, next, object, route, route_trigger, silent, trigger};

#[tokio::test(start_paused = true)]
async fn a_stream_says_the_state_on_opening_then_each_change_at_once_and_nothing_else() {
    let scene = Scene::new();
    scene.board.publish(&route("cart"), idle());
    let keda = scene.keda().await;
    let mut stream = keda.stream(route_trigger("cart")).await.unwrap();
    assert_eq!(next(&mut stream).await, Some(false));
    silent(&mut stream, Duration::from_mins(1)).await;
    let began = Instant::now();
    scene.board.publish(&route("cart"), busy(1));
    assert_eq!(next(&mut stream).await, Some(true));
    assert!(began.elapsed() <= Duration::from_millis(1), "after {:?}", began.elapsed());
    // More of the same is no change.
    scene.board.publish(&route("cart"), busy(50));
    silent(&mut stream, Duration::from_mins(1)).await;
    scene.board.publish(&route("cart"), idle());
    assert_eq!(next(&mut stream).await, Some(false));
    silent(&mut stream, Duration::from_mins(1)).await;
}

#[tokio::test(start_paused = true)]
async fn while_a_request_is_held_the_state_is_repeated_each_second() {
    let scene = Scene::new();
    scene.board.publish(&route("cart"), held());
    let keda = scene.keda().await;
    let mut stream = keda.stream(route_trigger("cart")).await.unwrap();
    assert_eq!(next(&mut stream).await, Some(true));
    for _ in 0..5 {
        let last = Instant::now();
        // Changes of the numbers do not delay the repetition.
        sleep_until(last + Duration::from_millis(400)).await;
        scene.board.publish(&route("cart"), RouteLoad { concurrency: 2, held: 2, ..held() });
        sleep_until(last + Duration::from_millis(800)).await;
        scene.board.publish(&route("cart"), held());
        assert_eq!(next(&mut stream).await, Some(true));
        let pause = last.elapsed();
        assert!(pause >= Duration::from_secs(1) && pause <= Duration::from_millis(1005), "{pause:?}");
    }
    scene.board.publish(&route("cart"), busy(1));
    silent(&mut stream, Duration::from_mins(1)).await;
    // Held again, while it is active: repeated at once, since the last time is long ago.
    scene.board.publish(&route("cart"), held());
    assert_eq!(next(&mut stream).await, Some(true));
}

#[tokio::test(start_paused = true)]
async fn a_held_request_makes_a_route_active_that_scales_on_the_request_rate_alone() {
    let scene = Scene::new();
    let by_rate = RouteLoad { rate_target: Some(5.0), concurrency_target: None, active: false, ..held() };
    scene.board.publish(&route("cart"), by_rate);
    scene.board.publish(&object("cart"), by_rate);
    let keda = scene.keda().await;
    for of in [route_trigger("cart"), trigger(&[("httpScaledObject", "cart")])] {
        assert!(keda.is_active(of.clone()).await.unwrap());
        let mut stream = keda.stream(of).await.unwrap();
        assert_eq!(next(&mut stream).await, Some(true));
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_route_is_inactive_and_its_stream_stays_until_the_route_appears_goes_and_comes_back() {
    let scene = Scene::new();
    let keda = scene.keda().await;
    assert!(!keda.is_active(route_trigger("cart")).await.unwrap());
    let mut stream = keda.stream(route_trigger("cart")).await.unwrap();
    assert_eq!(next(&mut stream).await, Some(false));
    silent(&mut stream, Duration::from_hours(1)).await;
    for _ in 0..2 {
        scene.board.publish(&route("cart"), idle());
        scene.board.publish(&route("cart"), held());
        assert_eq!(next(&mut stream).await, Some(true));
        assert!(keda.is_active(route_trigger("cart")).await.unwrap());
        scene.board.remove(&route("cart"));
        assert_eq!(next(&mut stream).await, Some(false));
        assert!(!keda.is_active(route_trigger("cart")).await.unwrap());
        silent(&mut stream, Duration::from_mins(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_bad_route_harms_no_other() {
    let scene = Scene::new();
    scene.board.publish(&route("cart"), idle());
    let keda = scene.keda().await;
    let mut good = keda.stream(route_trigger("cart")).await.unwrap();
    let mut unknown = keda.stream(route_trigger("nowhere")).await.unwrap();
    let bad = keda.stream(trigger(&[("interceptorRoute", "Not A Name")])).await.err().unwrap();
    assert_eq!(bad.code(), Code::InvalidArgument);
    let nothing = keda.stream(trigger(&[])).await.err().unwrap();
    assert_eq!(nothing.code(), Code::InvalidArgument);
    assert_eq!((next(&mut good).await, next(&mut unknown).await), (Some(false), Some(false)));
    scene.board.publish(&route("cart"), busy(1));
    assert_eq!(next(&mut good).await, Some(true));
    silent(&mut unknown, Duration::from_mins(1)).await;
}

#[tokio::test(start_paused = true)]
async fn all_routes_together_are_active_while_one_has_a_request() {
    let scene = Scene::new();
    let keda = scene.keda().await;
    let interceptors = trigger(&[("interceptorTargetPendingRequests", "200")]);
    let mut stream = keda.stream(interceptors.clone()).await.unwrap();
    assert_eq!(next(&mut stream).await, Some(false));
    scene.board.publish(&route("cart"), busy(2));
    assert_eq!(next(&mut stream).await, Some(true));
    scene.board.publish(&route("till"), busy(3));
    assert!(keda.is_active(interceptors.clone()).await.unwrap());
    scene.board.publish(&route("cart"), idle());
    scene.board.remove(&route("till"));
    assert_eq!(next(&mut stream).await, Some(false));
    assert!(!keda.is_active(interceptors).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn without_the_load_of_all_gateways_an_active_route_is_active_and_no_route_is_inactive() {
    let scene = Scene::new();
    scene.board.publish(&route("cart"), idle());
    scene.serving.send_replace(false);
    let keda = scene.keda().await;
    let of = || route_trigger("cart");
    for status in
        [keda.is_active(of()).await.err(), keda.specs(of()).await.err(), keda.values(of(), "").await.err()]
    {
        assert_eq!(status.unwrap().code(), Code::Unavailable);
    }
    let mut stream = keda.stream(of()).await.unwrap();
    silent(&mut stream, Duration::from_mins(1)).await;
    // One gateway is silent. A request at another one needs a pod, also if the first one has none.
    scene.board.publish(&route("cart"), busy(1));
    assert_eq!(next(&mut stream).await, Some(true));
    assert!(keda.is_active(of()).await.unwrap());
    assert_eq!(keda.values(of(), "").await.err().unwrap().code(), Code::Unavailable, "it may be more");
    // Its end does not mean that there is none elsewhere.
    scene.board.publish(&route("cart"), idle());
    silent(&mut stream, Duration::from_mins(1)).await;
    scene.serving.send_replace(true);
    assert_eq!(next(&mut stream).await, Some(false));
    assert!(!keda.is_active(of()).await.unwrap());
    assert_eq!((scene.calls("IsActive", "unavailable"), scene.calls("IsActive", "ok")), (1, 2));
}
