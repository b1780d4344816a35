//! Each form of trigger metadata: names, targets and values of the metrics, as in KEDA HTTP add-on.

use rouse_grpc::scaler::RouteLoad;
use tonic::Code;

use crate::harness::{Scene, busy, idle, object, route, route_trigger, trigger};
use crate::proto::externalscaler::{MetricSpec, MetricValue, ScaledObjectRef};

fn fraction(name: &str, target: f64) -> MetricSpec {
    MetricSpec { metric_name: name.into(), target_size: 0, target_size_float: target }
}

fn whole(name: &str, target: i64) -> MetricSpec {
    MetricSpec { metric_name: name.into(), target_size: target, target_size_float: 0.0 }
}

fn fraction_value(name: &str, value: f64) -> MetricValue {
    MetricValue { metric_name: name.into(), metric_value: 0, metric_value_float: value }
}

fn whole_value(name: &str, value: i64) -> MetricValue {
    MetricValue { metric_name: name.into(), metric_value: value, metric_value_float: 0.0 }
}

/// A load with both values, and these targets.
fn load(concurrency: Option<f64>, rate: Option<f64>) -> RouteLoad {
    RouteLoad {
        active: true,
        held: 2,
        concurrency: 7,
        rate: 2.25,
        concurrency_target: concurrency,
        rate_target: rate,
    }
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_route_has_a_metric_for_each_of_its_targets() {
    let (scene, of) = (Scene::new(), || route_trigger("cart"));
    let keda = scene.keda().await;
    let (concurrency, rate) = ("http_cart_concurrency", "http_cart_rate");
    for (targets, specs, values) in [
        ((Some(50.0), None), vec![fraction(concurrency, 50.0)], vec![fraction_value(concurrency, 7.0)]),
        ((None, Some(0.5)), vec![fraction(rate, 0.5)], vec![fraction_value(rate, 2.25)]),
        (
            (Some(50.0), Some(0.5)),
            vec![fraction(concurrency, 50.0), fraction(rate, 0.5)],
            vec![fraction_value(concurrency, 7.0), fraction_value(rate, 2.25)],
        ),
    ] {
        scene.board.publish(&route("cart"), load(targets.0, targets.1));
        assert_eq!(keda.specs(of()).await.unwrap(), specs);
        assert_eq!(keda.values(of(), "").await.unwrap(), values, "without a name, all");
        for name in [concurrency, rate, "other"] {
            let named: Vec<_> = values.iter().filter(|value| value.metric_name == name).cloned().collect();
            assert_eq!(keda.values(of(), name).await.unwrap(), named, "{name}");
        }
    }
    assert_eq!((scene.calls("GetMetricSpec", "ok"), scene.calls("GetMetrics", "ok")), (3, 12));
}

#[tokio::test(start_paused = true)]
async fn an_http_scaled_object_has_one_metric_in_whole_numbers() {
    let (scene, of) = (Scene::new(), || trigger(&[("httpScaledObject", "cart.v1")]));
    let (keda, name) = (scene.keda().await, "http-shop_002Fcart.v1");
    for (targets, target, value) in [
        ((Some(20.0), None), 20, 7),
        // The rate counts before the concurrency, rounded up.
        ((Some(20.0), Some(30.0)), 30, 3),
        ((None, Some(30.0)), 30, 3),
        // Without a target: targetPendingRequests has this default.
        ((None, None), 100, 7),
    ] {
        scene.board.publish(&object("cart.v1"), load(targets.0, targets.1));
        assert_eq!(keda.specs(of()).await.unwrap(), [whole(name, target)]);
        for asked in ["", name] {
            assert_eq!(keda.values(of(), asked).await.unwrap(), [whole_value(name, value)]);
        }
    }
    // The InterceptorRoute of the same name is another object.
    assert_eq!(keda.specs(route_trigger("cart.v1")).await.err().unwrap().code(), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn the_interceptors_themselves_scale_on_the_requests_of_all_routes() {
    let (scene, of) = (Scene::new(), || trigger(&[("interceptorTargetPendingRequests", "200")]));
    let (keda, name) = (scene.keda().await, "http-shop_002Fcart-scaler");
    assert_eq!(keda.specs(of()).await.unwrap(), [whole(name, 200)]);
    assert_eq!(keda.values(of(), name).await.unwrap(), [whole_value(name, 0)]);
    scene.board.publish(&route("cart"), busy(5));
    scene.board.publish(&object("till"), busy(6));
    assert_eq!(keda.values(of(), "").await.unwrap(), [whole_value(name, 11)]);
    scene.board.remove(&route("cart"));
    assert_eq!(keda.values(of(), "").await.unwrap(), [whole_value(name, 6)]);
}

#[tokio::test(start_paused = true)]
async fn of_several_keys_the_first_counts() {
    let scene = Scene::new();
    scene.board.publish(&route("cart"), load(Some(1.0), None));
    scene.board.publish(&object("till"), load(Some(2.0), None));
    let keda = scene.keda().await;
    let all = [
        ("interceptorTargetPendingRequests", "9"),
        ("httpScaledObject", "till"),
        ("interceptorRoute", "cart"),
    ];
    let name = |specs: Vec<MetricSpec>| specs[0].metric_name.clone();
    assert_eq!(name(keda.specs(trigger(&all)).await.unwrap()), "http_cart_concurrency");
    assert_eq!(name(keda.specs(trigger(&all[..2])).await.unwrap()), "http-shop_002Ftill");
    assert_eq!(name(keda.specs(trigger(&all[..1])).await.unwrap()), "http-shop_002Fcart-scaler");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_route_has_no_metrics_and_the_answer_names_it() {
    let scene = Scene::new();
    let keda = scene.keda().await;
    for (of, name) in [
        (route_trigger("cart"), "InterceptorRoute shop/cart"),
        (trigger(&[("httpScaledObject", "till")]), "HTTPScaledObject shop/till"),
    ] {
        for status in [keda.specs(of.clone()).await.err().unwrap(), keda.values(of, "").await.err().unwrap()]
        {
            assert_eq!(status.code(), Code::NotFound);
            assert!(status.message().starts_with(name), "{status:?}");
        }
    }
    assert_eq!(scene.calls("GetMetrics", "unknown_route"), 2);
}

#[tokio::test(start_paused = true)]
async fn metadata_that_cannot_be_used_is_refused_with_what_is_allowed_and_without_its_values() {
    let scene = Scene::new();
    let keda = scene.keda().await;
    let secret = ("password", "hunter2-hunter2-hunter2");
    for (of, reason) in [
        (
            trigger(&[]),
            "set interceptorRoute, httpScaledObject or interceptorTargetPendingRequests in its metadata (it has: nothing)",
        ),
        (trigger(&[secret, ("interceptorroute", "cart")]), "(it has: interceptorroute, password)"),
        (
            trigger(&[("interceptorRoute", "")]),
            "interceptorRoute: \"\" is not the name of a Kubernetes object",
        ),
        (trigger(&[("httpScaledObject", "shop/cart")]), "httpScaledObject: \"shop/cart\" is not the name"),
        (
            trigger(&[("interceptorTargetPendingRequests", "many")]),
            "\"many\" is not a number: expected the requests",
        ),
        (
            ScaledObjectRef { namespace: "a b".into(), ..route_trigger("cart") },
            "namespace: \"a b\" is not the name",
        ),
        (ScaledObjectRef { name: String::new(), ..route_trigger("cart") }, "name: \"\" is not the name"),
    ] {
        for status in [
            keda.is_active(of.clone()).await.err(),
            keda.specs(of.clone()).await.err(),
            keda.values(of.clone(), "").await.err(),
            keda.stream(of).await.err(),
        ] {
            let status = status.unwrap();
            assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
            assert!(status.message().contains(reason), "{status:?}");
            assert!(!status.message().contains("hunter2"), "{status:?}");
        }
    }
    let empty = crate::proto::externalscaler::GetMetricsRequest::default();
    let origin = "http://scaler:9090".parse().unwrap();
    let mut client = crate::proto::externalscaler::external_scaler_client::ExternalScalerClient::with_origin(
        keda.channel.clone(),
        origin,
    );
    assert_eq!(client.get_metrics(empty).await.err().unwrap().code(), Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn numbers_that_are_none_do_no_harm() {
    let scene = Scene::new();
    let keda = scene.keda().await;
    for (rate, whole) in [(f64::NAN, 0), (f64::INFINITY, i64::MAX), (-3.5, -3)] {
        let strange = RouteLoad { rate, concurrency: u64::MAX, rate_target: Some(1.0), ..idle() };
        scene.board.publish(&object("cart"), strange);
        let values = keda.values(trigger(&[("httpScaledObject", "cart")]), "").await.unwrap();
        assert_eq!(values[0].metric_value, whole);
    }
    let total = trigger(&[("interceptorTargetPendingRequests", "1")]);
    assert_eq!(keda.values(total, "").await.unwrap()[0].metric_value, i64::MAX);
}

#[tokio::test(start_paused = true)]
async fn the_stream_of_metric_specs_is_not_implemented_which_keda_accepts() {
    let scene = Scene::new();
    let keda = scene.keda().await;
    assert_eq!(keda.spec_stream(route_trigger("cart")).await.err().unwrap().code(), Code::Unimplemented);
}
