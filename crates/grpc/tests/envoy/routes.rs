//! Hosts, paths and headers of requests, and responses that come from Envoy itself.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use rouse_core::envoy::EnvoyHealth;
use rouse_grpc::xds::resource_type::ResourceType;
use rouse_grpc::xds::resources::{HostRoutes, PathRoute, PodProtocol, RouteAction, listener};
use rouse_testkit::envoy::get;

use crate::client::ask;
use crate::pods::{Pod, Speaks};
use crate::scene::{Scene, forward, pod, route};

fn says(text: &str) -> RouteAction {
    RouteAction::Respond { status: 200, headers: Vec::new(), body: Bytes::copy_from_slice(text.as_bytes()) }
}

fn host(domain: &str, routes: Vec<PathRoute>) -> HostRoutes {
    HostRoutes { domain: domain.to_owned(), routes }
}

fn with_header(name: &str, value: Option<&str>, route: PathRoute) -> PathRoute {
    let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    let headers = [route.headers, vec![(name.to_owned(), value)]].concat();
    PathRoute { headers, ..route }
}

type HeaderRow<'a> = &'a [(&'a str, &'a str)];
/// Host, path and headers of a request, and the body of the response.
type RequestRow<'a> = (&'a str, &'a str, HeaderRow<'a>, &'a str);

#[rustfmt::skip]
const REQUESTS: &[RequestRow<'static>] = &[
    ("shop.example.com", "/cart", &[], "cart"),
    ("shop.example.com", "/cart/", &[], "cart"),
    ("shop.example.com", "/cart/7?x=1", &[], "cart"),
    ("shop.example.com", "/cart?x=1", &[], "cart"),
    ("shop.example.com", "/carts", &[], "shop"),
    ("shop.example.com", "/Cart", &[], "shop"),
    ("shop.example.com", "/", &[], "shop"),
    ("shop.example.com", "/?x=1", &[], "shop"),
    // Hosts: case, port and the dot at the end do not matter.
    ("SHOP.example.com", "/cart", &[], "cart"),
    ("shop.example.com:8080", "/cart", &[], "cart"),
    ("shop.example.com.", "/cart", &[], "cart"),
    ("shop.example.com.:8080", "/cart", &[], "cart"),
    ("a.example.com", "/cart", &[], "below"),
    ("a.b.example.com:80", "/", &[], "below"),
    ("a.example.com.", "/", &[], "below"),
    ("example.com", "/", &[], "any"),
    ("shop.example.org", "/cart", &[], "any"),
    ("[::1]:80", "/", &[], "any"),
    ("127.0.0.1", "/", &[], "any"),
    // Headers: all of them, in the order of the routes.
    ("shop.example.com", "/cart", &[("x-version", "2")], "cart 2"),
    ("shop.example.com", "/cart", &[("x-version", "3")], "cart"),
    ("shop.example.com", "/cart", &[("x-version", "2"), ("x-canary", "")], "cart 2 canary"),
    ("shop.example.com", "/cart", &[("x-version", "2"), ("x-canary", "any")], "cart 2 canary"),
    ("shop.example.com", "/cart", &[("x-canary", "any")], "cart"),
    ("shop.example.com", "/", &[("x-version", "2")], "shop"),
];

pub(crate) async fn table() {
    let scene = Scene::start().await;
    let version = |route| with_header("x-version", Some("2"), route);
    let canary = with_header("x-canary", None, version(route("/cart", says("cart 2 canary"))));
    let routes = vec![
        canary,
        version(route("/cart", says("cart 2"))),
        route("/cart", says("cart")),
        route("", says("shop")),
    ];
    let hosts = [
        host("shop.example.com", routes),
        host("*.example.com", vec![route("", says("below"))]),
        host("*", vec![route("", says("any"))]),
    ];
    let listener = scene.listen(&hosts).await;
    for (host, path, headers, expected) in REQUESTS {
        let answer = get(listener, host, path, headers).await.unwrap();
        let body = String::from_utf8_lossy(answer.body());
        assert_eq!((answer.status().as_u16(), &*body), (200, *expected), "{host} {path} {headers:?}");
    }
}

async fn response(scene: &Scene, action: RouteAction) -> Response<Bytes> {
    // A listener that is there has the new routes only after a while: each response has its own host.
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let domain = format!("n{number}.test");
    let listener = scene.listen(&[host(&domain, vec![route("", action)])]).await;
    rouse_testkit::envoy::eventually("the new route", async || {
        let answer = get(listener, &domain, "/", &[]).await.unwrap();
        (answer.headers().contains_key("x-of-the-test") || answer.status() != 404).then_some(answer)
    })
    .await
}

static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// The headers of a response under a name.
fn values(answer: &Response<Bytes>, name: &str) -> Vec<String> {
    let values = answer.headers().get_all(name).iter();
    values.map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap()).collect()
}

pub(crate) async fn direct_responses() {
    let scene = Scene::start().await;
    let headers = [
        ("content-type", "application/json"),
        ("x-percent", "100% of %PROTOCOL% %%"),
        ("x-empty", ""),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("cache-control", "no-store"),
    ];
    let headers: Vec<(String, Bytes)> = headers.map(|(name, value)| (name.to_owned(), value.into())).into();
    let body = Bytes::from("{\"says\": \"100% of %PROTOCOL%\"}");
    let action = RouteAction::Respond { status: 418, headers: headers.clone(), body: body.clone() };
    let answer = response(&scene, action).await;
    assert_eq!((answer.status().as_u16(), answer.body()), (418, &body));
    for (name, expected) in [
        ("content-type", &["application/json"][..]),
        ("x-percent", &["100% of %PROTOCOL% %%"]),
        ("x-empty", &[""]),
        ("set-cookie", &["a=1", "b=2"]),
        ("cache-control", &["no-store"]),
        ("location", &[]),
    ] {
        assert_eq!(values(&answer, name), expected, "{name}");
    }

    // Longer than the 4 KiB that Envoy takes unless it is told otherwise, and not text.
    let long: Bytes = (0..100_000u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let action = RouteAction::Respond { status: 200, headers: Vec::new(), body: long.clone() };
    assert!(response(&scene, action).await.body() == &long, "another body");

    // Envoy must not add the URL of the request as `location`.
    let moved = ("location".to_owned(), Bytes::from("https://else.test/"));
    for (status, headers, expected) in [
        (201, Vec::new(), &[][..]),
        (304, Vec::new(), &[]),
        (302, vec![moved.clone()], &["https://else.test/"]),
        (201, vec![moved], &["https://else.test/"]),
    ] {
        let answer = response(&scene, RouteAction::Respond { status, headers, body: Bytes::new() }).await;
        assert_eq!((answer.status().as_u16(), answer.body().len()), (status, 0));
        assert_eq!(values(&answer, "location"), expected, "{status}");
    }
}

pub(crate) async fn timeouts() {
    let scene = Scene::start().await;
    let mut served = Pod::numbered(1, Speaks::Http1).await;
    scene.cluster("shop/web", PodProtocol::Http1);
    let short = RouteAction::Forward { cluster: "shop/web".into(), timeout: Some(Duration::from_millis(50)) };
    let hosts =
        [host("short.test", vec![route("", short)]), host("none.test", vec![route("", forward("shop/web"))])];
    let listener: SocketAddr = scene.listen(&hosts).await;
    scene.endpoints("shop/web", &[pod(served.address, EnvoyHealth::Healthy)], false).await;
    assert_eq!(ask(listener, "short.test", "/silent").await.0, 504);
    let dump = scene.envoy.ask("/config_dump").await;
    assert!(dump.contains("\"timeout\": \"0s\""), "a route without a timeout has Envoy's 15 s: {dump}");
    let (answer, chunks) = tokio::join!(ask(listener, "none.test", "/stream"), async {
        let chunks = served.next_stream().await;
        chunks.send("late".into()).await.unwrap();
    });
    assert_eq!((answer, chunks), ((200, "late".to_owned()), ()));
}

pub(crate) async fn all_addresses() {
    let scene = Scene::start().await;
    let action = says("any");
    scene.listen(&[host("*", vec![route("", action)])]).await;
    for (name, address) in [("ipv6", "[::]:0"), ("ipv4", "0.0.0.0:0")] {
        let address: SocketAddr = address.parse().unwrap();
        scene.set(ResourceType::Listener, name, listener(name, address, "http"));
        let port = scene.envoy.listener(name).await.port();
        let by_ipv4 = SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(ask(by_ipv4, "a.test", "/").await, (200, "any".to_owned()), "{name}");
    }
}
