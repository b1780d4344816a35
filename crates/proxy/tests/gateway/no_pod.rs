//! Routes without a pod: static responses, fallbacks, limits on waiting requests, and passive requests.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use rouse_core::routing_mode::RoutingMode;
use rouse_core::service::Service;
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_core::start_failure::{StartFailure, StartFailureCause};
use rouse_net::tls::{
    Alpn, CertEntry, ClientSettings, ClientTls, Roots, ServerName, ServerSettings, ServerTls,
};
use rouse_proxy::routing::{
    FixedResponse, NoPodPolicy, PassiveRequests, PendingLimit, StaticResponse, Target,
};
use rouse_proxy::upstream::{Backend, ClusterIp, ColdStartHeaders, Timeouts, UpstreamProtocol};
use rouse_testkit::fakes::{DRAINING, READY};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::certificates::Authority;
use crate::http2_peers::{H2Client, answer, h2c, read};
use crate::rig::{GET, GET_AND_CLOSE, Options, PATIENCE, Pod, Rig, backend, eventually};
use crate::upstream_tls::{TlsPod, server};

/// "Soon", as a 503.
pub(crate) fn page() -> Arc<StaticResponse> {
    let headers = [("x-page".parse().unwrap(), "soon".parse().unwrap())];
    Arc::new(StaticResponse::new(StatusCode::SERVICE_UNAVAILABLE, headers, "<p>Soon</p>".into()))
}

fn is_page(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("\r\n\r\n<p>Soon</p>"), "{answer}");
    assert!(answer.contains("\r\nx-page: soon\r\n"), "{answer}");
    assert!(answer.contains("\r\ncontent-type: text/html; charset=utf-8\r\n"), "{answer}");
    assert!(
        !answer.contains("x-rouse-"),
        "a static response is neither a pod's nor a gateway error: {answer}"
    );
}

fn is_served(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello"), "{answer}");
}

fn is_failed(answer: &str, status: u16, code: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    assert!(answer.contains(&format!("\r\nx-rouse-error: {code}\r\n")), "{answer}");
}

fn impatient() -> Options {
    let timeouts = Timeouts { readiness: Some(Duration::from_millis(50)), ..Timeouts::default() };
    Options { timeouts, ..Options::default() }
}

#[tokio::test]
async fn a_placeholder_answers_at_once_wakes_once_and_counts_as_load() {
    let rig = Rig::new(Options::default());
    rig.no_pod(NoPodPolicy { placeholder: Some(page()), ..NoPodPolicy::default() });
    for _ in 0..5 {
        is_page(&rig.get("/").await);
    }
    assert_eq!((rig.engine.wakes(), rig.service.asked(), rig.service.holds()), (1, 5, 0));
    rig.requests_counted(503, "http1", 5).await;
    for conditions in [READY, DRAINING] {
        let pod = Pod::new(1).await;
        rig.pods(&[(&pod, conditions)]);
        let _pod = pod.serve();
        is_served(&rig.get("/").await);
    }
}

#[tokio::test]
async fn a_placeholder_is_not_for_pods_that_are_merely_at_their_limit() {
    let (rig, pod) =
        Rig::with_pod(Options { concurrency: ConcurrencyLimits::new(0, 1), ..Options::default() }).await;
    rig.no_pod(NoPodPolicy { placeholder: Some(page()), ..NoPodPolicy::default() });
    let (_first, mut wire) = rig.send_to(&pod, GET).await;
    let coming = async {
        eventually("it waits for its turn", || rig.service.holds() == 1).await;
        wire.answer_last("hello").await;
        pod.serve()
    };
    let (answer, _pod) = tokio::join!(rig.get("/"), coming);
    is_served(&answer);
    assert_eq!(rig.engine.wakes(), 0);
}

#[tokio::test]
async fn a_placeholder_voids_what_is_known_of_the_cluster_ip() {
    let ip = Pod::new(0).await;
    let options =
        Options { direct: RoutingMode::ColdStartOnly, cluster_ip: vec![ip.address], ..Options::default() };
    let (ip, rig) = (ip.serve(), Rig::new(options));
    rig.no_pod(NoPodPolicy { placeholder: Some(page()), ..NoPodPolicy::default() });
    let pod = Pod::new(1).await;
    let address = pod.address;
    let pod = pod.serve();
    rig.slices(&[(1, address, READY)]);
    let asking = async {
        while ip.paths().is_empty() {
            is_served(&rig.get("/").await);
        }
    };
    timeout(PATIENCE, asking).await.expect("the ClusterIP accepts, and should be used");
    rig.slices(&[]);
    is_page(&rig.get("/").await);
    let before = pod.paths().len();
    rig.slices(&[(1, address, READY)]);
    is_served(&rig.get("/").await);
    assert_eq!(pod.paths().len(), before + 1);
}

#[tokio::test]
async fn a_fixed_response_wakes_no_pod_and_is_not_counted_as_load() {
    for when_unavailable in [false, true] {
        let rig = Rig::new(Options::default());
        let fixed = Some(FixedResponse { response: page(), when_unavailable });
        rig.no_pod(NoPodPolicy { fixed, ..NoPodPolicy::default() });
        is_page(&rig.get("/").await);
        assert_eq!((rig.engine.wakes(), rig.service.asked(), rig.service.holds()), (0, 0, 0));
        let pod = Pod::new(1).await;
        rig.pods(&[(&pod, READY)]);
        let pod = pod.serve();
        let answer = rig.get("/").await;
        if when_unavailable {
            is_served(&answer);
        } else {
            is_page(&answer);
        }
        assert_eq!((pod.paths().len(), rig.engine.wakes()), (usize::from(when_unavailable), 0));
    }
}

#[tokio::test]
async fn more_than_may_wait_are_turned_away_and_wake_all_the_same() {
    for overflow in [None, Some(page())] {
        let rig = Rig::new(Options::default());
        let pending = Some(PendingLimit::new(1));
        rig.no_pod(NoPodPolicy { pending, overflow: overflow.clone(), ..NoPodPolicy::default() });
        let full = |answer: &str| {
            if overflow.is_some() {
                return is_page(answer);
            }
            is_failed(answer, 503, "queue_full");
            assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
        };
        let held = rig.send(GET).await;
        eventually("the first is held", || rig.service.holds() == 1 && rig.engine.wakes() == 1).await;
        full(&rig.get("/").await);
        assert_eq!((rig.engine.wakes(), rig.service.asked()), (1, 2));
        assert_eq!(
            rig.metric(r#"rouse_hold_duration_seconds_count{service="shop/cart",outcome="queue_full"}"#),
            1
        );
        held.reset();
        eventually("it has left", || rig.service.holds() == 0).await;
        let mut next = rig.send_held(GET_AND_CLOSE).await;
        let pod = Pod::new(1).await;
        rig.pods(&[(&pod, READY)]);
        let _pod = pod.serve();
        is_served(&next.rest().await);
        for _ in 0..3 {
            is_served(&rig.get("/").await);
        }
    }
    let rig = Rig::new(Options::default());
    rig.no_pod(NoPodPolicy { pending: Some(PendingLimit::new(0)), ..NoPodPolicy::default() });
    is_failed(&rig.get("/").await, 503, "queue_full");
    assert_eq!((rig.engine.wakes(), rig.service.holds()), (1, 0), "also if no request may wait at all");
}

/// Sends a POST while no pod is ready. Returns which backend got it.
async fn post(rig: &Rig) -> String {
    let head = "POST /a?b HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\nContent-Length: 6\r\n\r\n";
    let mut client = rig.send(head).await;
    client.write("abcdef").await;
    client.rest().await
}

/// A gateway whose route has no pod, and falls back to `shop/spare`, whose pod is ready.
async fn with_fallback(options: Options, protocol: UpstreamProtocol) -> (Rig, Arc<Service>, Pod) {
    let rig = Rig::new(options);
    let (spare, pod) = (rig.add("spare"), Pod::new(2).await);
    Rig::slices_of(&spare, &[(2, pod.address, READY)]);
    let fallback = Some(Target::Backend(backend(&spare, protocol)));
    rig.no_pod(NoPodPolicy { fallback, ..NoPodPolicy::default() });
    (rig, spare, pod)
}

#[tokio::test]
async fn a_request_that_waited_in_vain_goes_to_the_fallback_with_its_body() {
    let (rig, spare, pod) = with_fallback(impatient(), UpstreamProtocol::Http1).await;
    let serving = async {
        let mut wire = pod.accept().await;
        let head = wire.head().await;
        assert!(
            head.starts_with("POST /a?b HTTP/1.1\r\n") && head.contains("\r\nhost: cart.test\r\n"),
            "{head}"
        );
        wire.until("abcdef").await;
        wire.answer("hello").await;
    };
    let (answer, ()) = tokio::join!(post(&rig), serving);
    is_served(&answer);
    assert_eq!((rig.engine.wakes_of(rig.service.id()), rig.engine.wakes_of(spare.id())), (1, 0));
    assert_eq!(spare.asked(), 1);
    eventually("its slot is given back", || spare.in_flight() == 0).await;
}

#[tokio::test]
async fn a_start_that_failed_for_good_goes_to_the_fallback_at_once() {
    let (rig, _spare, pod) = with_fallback(Options::default(), UpstreamProtocol::Http1).await;
    let serving = async {
        eventually("it is held", || rig.service.holds() == 1).await;
        rig.service.wake_failed(StartFailure::new(StartFailureCause::NoScaleTarget, "no Deployment fits"));
        pod.answer("hello").await
    };
    let (answer, _wire) = tokio::join!(rig.get("/"), serving);
    is_served(&answer);
}

#[tokio::test]
async fn a_fallback_is_spoken_to_in_its_own_way_and_by_its_own_name() {
    let (rig, spare, pod) = with_fallback(impatient(), UpstreamProtocol::H2c).await;
    let serving = async {
        let mut connection = pod.accept_h2().await;
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let reading = async {
            assert_eq!(read(request.into_body()).await, b"abcdef");
            answer(&mut respond, "hello");
        };
        tokio::select! { () = reading => {}, _ = connection.accept() => {} }
        connection.accept().await;
    };
    let answered = async {
        tokio::select! { answer = post(&rig) => answer, () = serving => String::new() }
    };
    let answer = answered.await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\r\nhello\r\n"), "{answer}");

    let (authority, pod) = (Authority::new(), Pod::new(3).await);
    Rig::slices_of(&spare, &[(3, pod.address, READY)]);
    let pod = TlsPod::serve(pod, server(authority.leaf(&["spare.shop.svc"])), false);
    let name = ServerName::try_from("spare.shop.svc").unwrap();
    let (tls, _) = ClientTls::new(ClientSettings::new(name, Roots::Pem(vec![authority.ca()]))).unwrap();
    let fallback = Some(Target::Backend(backend(&spare, UpstreamProtocol::Tls(Arc::new(tls)))));
    rig.no_pod(NoPodPolicy { fallback, ..NoPodPolicy::default() });
    let answer = rig.get("/").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("\r\nhello\r\n"), "{answer}");
    assert_eq!(pod.shaken().first().unwrap().sni.as_deref(), Some("spare.shop.svc"));
}

#[tokio::test]
async fn a_fallback_without_endpoints_is_reached_by_its_cluster_ip() {
    for direct in [RoutingMode::Disabled, RoutingMode::ColdStartOnly, RoutingMode::Always] {
        let (rig, ip) = (Rig::new(impatient()), Pod::new(0).await);
        let spare = rig.add("spare");
        let cluster_ip = ClusterIp::new([ip.address].into());
        let there = Backend { direct, cluster_ip, ..backend(&spare, UpstreamProtocol::Http1) };
        rig.no_pod(NoPodPolicy { fallback: Some(Target::Backend(there)), ..NoPodPolicy::default() });
        let ip = ip.serve();
        is_served(&rig.get("/").await);
        assert_eq!((ip.paths().len(), rig.engine.wakes_of(spare.id())), (1, 0));
    }
}

#[tokio::test]
async fn a_fallback_that_cannot_be_had_leaves_the_client_with_what_it_waited_for() {
    let rig = Rig::new(impatient());
    for fallback in [Target::NoService, Target::BadPort] {
        rig.no_pod(NoPodPolicy { fallback: Some(fallback), ..NoPodPolicy::default() });
        is_failed(&rig.get("/").await, 504, "readiness_timeout");
    }
    let unusable = UpstreamProtocol::Unusable("there is no Secret shop/tls".into());
    let fallback = Some(Target::Backend(backend(&rig.add("spare"), unusable)));
    rig.no_pod(NoPodPolicy { fallback, ..NoPodPolicy::default() });
    let answer = rig.get("/").await;
    is_failed(&answer, 502, "tls_failed");
    assert!(answer.contains("there is no Secret shop/tls"), "{answer}");
}

#[tokio::test]
async fn passive_requests_wake_no_pod_and_are_served_by_a_ready_one() {
    let rig = Rig::new(Options::default());
    let passive = PassiveRequests {
        paths: vec!["/healthz".parse().unwrap()],
        methods: vec![Method::OPTIONS],
        agents: vec!["robot".into()],
    };
    rig.no_pod(NoPodPolicy { passive: passive.clone(), placeholder: Some(page()), ..NoPodPolicy::default() });
    for request in [
        "GET /healthz/db HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\n\r\n",
        "OPTIONS / HTTP/1.1\r\nHost: cart.test\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: cart.test\r\nUser-Agent: A Robot\r\nConnection: close\r\n\r\n",
    ] {
        is_failed(&rig.send(request).await.rest().await, 503, "not_woken");
    }
    assert_eq!((rig.engine.wakes(), rig.service.asked(), rig.service.holds()), (0, 0, 0));

    for conditions in [READY, DRAINING] {
        let pod = Pod::new(1).await;
        rig.pods(&[(&pod, conditions)]);
        let _pod = pod.serve();
        is_served(&rig.get("/healthz").await);
        assert_eq!((rig.engine.wakes(), rig.service.asked()), (0, 0));
    }
    eventually("their slots are given back", || rig.service.in_flight() == 0).await;
    let dead = Pod::new(2).await;
    let address = dead.address;
    drop(dead);
    rig.slices(&[(2, address, DRAINING)]);
    is_failed(&rig.get("/healthz").await, 502, "connect_failed");
    assert_eq!((rig.engine.wakes(), rig.service.asked()), (0, 0), "also not when the last pod refuses");

    let good = Pod::new(3).await;
    // A pod that is not in backoff yet.
    rig.slices(&[(4, address, READY), (3, good.address, READY)]);
    let good = good.serve();
    for _ in 0..20 {
        is_served(&rig.get("/healthz").await);
    }
    assert_eq!((good.paths().len(), rig.service.asked()), (20, 0), "what one refuses, another takes");
    assert_eq!(rig.engine.wakes(), 0);
}

#[tokio::test]
async fn a_passive_request_does_not_wait() {
    let (rig, pod) =
        Rig::with_pod(Options { concurrency: ConcurrencyLimits::new(0, 1), ..Options::default() }).await;
    let passive = PassiveRequests { paths: vec!["/healthz".parse().unwrap()], ..PassiveRequests::default() };
    rig.no_pod(NoPodPolicy { passive, ..NoPodPolicy::default() });
    let (_first, _wire) = rig.send_to(&pod, GET).await;
    is_failed(&rig.get("/healthz").await, 503, "not_woken");
    assert_eq!((rig.service.asked(), rig.service.holds()), (1, 0));
}

#[tokio::test]
async fn what_cannot_be_spoken_to_safely_is_not_spoken_to_nor_woken() {
    let protocol = UpstreamProtocol::Unusable("there is no Secret shop/tls".into());
    let rig = Rig::new(Options { protocol, ..Options::default() });
    let check = async || {
        let answer = rig.get("/").await;
        is_failed(&answer, 502, "tls_failed");
        assert!(answer.ends_with("there is no Secret shop/tls\n"), "{answer}");
    };
    check().await;
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let pod = pod.serve();
    check().await;
    assert_eq!((rig.engine.wakes(), rig.service.asked(), pod.paths().len()), (0, 0, 0));
}

/// A client's request over TLS: the whole answer.
async fn get_over_tls(rig: &Rig, authority: &Authority) -> String {
    let name = ServerName::try_from("cart.test").unwrap();
    let settings = ClientSettings {
        alpn: vec![Alpn::Http1],
        ..ClientSettings::new(name, Roots::Pem(vec![authority.ca()]))
    };
    let (client, _) = ClientTls::new(settings).unwrap();
    let stream = TcpStream::connect(rig.address).await.unwrap();
    let (mut stream, _) = client.connect(stream, Instant::now() + PATIENCE).await.unwrap();
    stream.write_all(GET_AND_CLOSE.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an answer").unwrap();
    answer
}

#[tokio::test]
async fn pods_may_be_spoken_to_as_the_client_came() {
    let authority = Authority::new();
    let identity = authority.leaf(&["cart.test"]);
    let entry = CertEntry { identity, names: Vec::new() };
    let (tls, _) = ServerTls::new(ServerSettings::new(vec![entry])).unwrap();
    let tls = Arc::new(tls);
    let unusable = || UpstreamProtocol::Unusable("not this way".into());
    for (protocol, over_tls, clear, secure) in [
        (UpstreamProtocol::Http1, Some(unusable()), true, false),
        (unusable(), Some(UpstreamProtocol::Http1), false, true),
        (UpstreamProtocol::Http1, None, true, true),
    ] {
        let options = Options { protocol, over_tls, ..Options::default() };
        for (door, served) in [(None, clear), (Some(&tls), secure)] {
            let (rig, pod) = (Rig::behind(options.clone(), door), Pod::new(1).await);
            rig.pods(&[(&pod, READY)]);
            let _pod = pod.serve();
            let answer = match door {
                None => rig.get("/").await,
                Some(_) => get_over_tls(&rig, &authority).await,
            };
            if served { is_served(&answer) } else { is_failed(&answer, 502, "tls_failed") }
        }
    }
}

#[tokio::test]
async fn a_cold_start_is_reported_in_each_enabled_header() {
    for (rouse, keda) in [(true, true), (true, false), (false, true), (false, false)] {
        let cold_start = ColdStartHeaders { rouse, keda };
        let rig = Rig::new(Options { cold_start, ..Options::default() });
        let pod = Pod::new(1).await;
        let coming = async {
            rig.pods_once_held(&[(&pod, READY)]).await;
            pod.serve()
        };
        let (cold, _pod) = tokio::join!(rig.get("/"), coming);
        for (answer, value) in [(cold, "true"), (rig.get("/").await, "false")] {
            is_served(&answer);
            let has = |name: &str| answer.contains(&format!("\r\n{name}: {value}\r\n"));
            assert_eq!((has("x-rouse-cold-start"), has("x-keda-http-cold-start")), (rouse, keda), "{answer}");
            assert_eq!(answer.matches("-cold-start: ").count(), usize::from(rouse) + usize::from(keda));
        }
    }
}

/// With a placeholder, and no pod to wait for.
fn placeholder() -> Rig {
    let rig = Rig::new(h2c());
    rig.no_pod(NoPodPolicy { placeholder: Some(page()), ..NoPodPolicy::default() });
    rig
}

#[tokio::test]
async fn a_head_request_gets_the_headers_of_a_static_response_and_no_body() {
    let rig = placeholder();
    let mut client = rig.connect().await;
    for _ in 0..2 {
        client.write("HEAD / HTTP/1.1\r\nHost: cart.test\r\n\r\n").await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("\r\ncontent-length: 11\r\n"), "{head}");
    }
    client.write(GET_AND_CLOSE).await;
    is_page(&client.rest().await);

    let client = H2Client::new(&rig).await;
    for host in ["cart.test", "else.test"] {
        let request = Request::head(format!("http://{host}/"));
        let response = client.send(request, true).await.0.head().await;
        let length = response.headers().get("content-length").unwrap().to_str().unwrap();
        assert!(length.parse::<usize>().unwrap() > 0);
        assert_eq!(read(response.into_body()).await, b"", "{host}");
    }
}

/// A gRPC client maps the HTTP status of a page as gRPC specifies. A page may set a `grpc-status` of its own.
#[tokio::test]
async fn a_grpc_request_gets_the_page_as_it_is() {
    let rig = placeholder();
    let client = H2Client::new(&rig).await;
    let grpc = || Request::post("http://cart.test/shop.Cart/Get").header("content-type", "application/grpc");
    let response = client.send(grpc(), true).await.0.head().await;
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers().get("content-type").unwrap(), "text/html; charset=utf-8");
    assert_eq!(read(response.into_body()).await, b"<p>Soon</p>");
    rig.requests_counted(503, "grpc", 1).await;

    let headers = [("content-type", "application/grpc"), ("grpc-status", "14")];
    let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    let status = StaticResponse::new(StatusCode::OK, headers, "".into());
    rig.no_pod(NoPodPolicy { placeholder: Some(Arc::new(status)), ..NoPodPolicy::default() });
    let response = client.send(grpc(), true).await.0.head().await;
    assert_eq!(
        (response.status(), response.headers().get("grpc-status").unwrap().as_bytes()),
        (StatusCode::OK, &b"14"[..])
    );
    assert!(response.body().is_end_stream());
}

#[tokio::test]
async fn a_page_in_place_of_an_upgrade_ends_the_connection() {
    let rig = placeholder();
    let requests = "GET / HTTP/1.1\r\nHost: cart.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\
                    GET /smuggled HTTP/1.1\r\nHost: cart.test\r\n\r\n";
    let answer = rig.send(requests).await.rest().await;
    is_page(&answer);
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
}

#[tokio::test]
async fn what_a_page_says_of_its_length_and_its_connection_does_not_count() {
    let rig = Rig::new(Options::default());
    for (status, length) in [(StatusCode::OK, 4), (StatusCode::NO_CONTENT, 0), (StatusCode::NOT_MODIFIED, 0)]
    {
        let headers = [
            ("content-length", "1000"),
            ("transfer-encoding", "chunked"),
            ("connection", "upgrade, x-hop"),
            ("upgrade", "websocket"),
            ("trailer", "x-sum"),
            ("x-hop", "1"),
            ("x-kept", "1"),
        ];
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let answer = Arc::new(StaticResponse::new(status, headers, "soon".into()));
        rig.no_pod(NoPodPolicy {
            fixed: Some(FixedResponse { response: answer, when_unavailable: false }),
            ..NoPodPolicy::default()
        });
        let answer = rig.get("/").await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(body.len(), length, "{answer}");
        let over_http2 = H2Client::new(&rig).await.get("http://cart.test/").await.head().await;
        assert_eq!(over_http2.status(), status);
        assert_eq!(read(over_http2.into_body()).await.len(), length);
        assert!(head.contains("\r\nx-kept: 1"), "{answer}");
        for gone in ["1000", "chunked", "upgrade", "trailer", "x-hop"] {
            assert!(!head.contains(gone), "{answer}");
        }
    }
}
