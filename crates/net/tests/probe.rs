//! A single probe against real sockets: what passes, and every kind of failure.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rouse_core::probe::{ProbeCheck, ProbePlan, ProbeSpec, ReadinessProbe};
use rouse_net::probe::grpc_health_proto::{BadHealth, ServingStatus};
use rouse_net::probe::{ProbeFailure, probe};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const HOME: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Longer than any pod takes that answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// Long enough for local steps, also on a busy machine.
const SHORT: Duration = Duration::from_secs(1);

fn plan(checks: impl IntoIterator<Item = ProbeCheck>) -> ProbePlan {
    let container = |check| Some(ReadinessProbe { check, foreign_host: false });
    let spec = ProbeSpec { containers: checks.into_iter().map(container).collect(), readiness_gates: 0 };
    ProbePlan::new(&spec, 0, true).unwrap()
}

fn http(port: u16) -> ProbeCheck {
    ProbeCheck::Http { port, path: "/healthz?full=1".into(), tls: false, headers: Vec::new() }
}

fn grpc(port: u16) -> ProbeCheck {
    ProbeCheck::Grpc { port, service: "shop.Cart".into() }
}

async fn ask(check: ProbeCheck, patience: Duration) -> Result<(), ProbeFailure> {
    probe(HOME, &plan([check]), Instant::now() + patience).await
}

/// A server that does `serve` with each connection, until the tasks are dropped.
async fn server<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> (u16, JoinSet<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((HOME, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve(stream));
        }
    });
    (port, tasks)
}

/// Reads a request's head, then writes `answer` over and over for `times`, then closes.
async fn says(answer: &'static [u8], times: usize) -> (u16, JoinSet<()>) {
    server(move |mut stream| async move {
        let mut head = [0; 4096];
        if stream.read(&mut head).await.is_ok() {
            for _ in 0..times {
                // A client that has read enough goes away.
                if stream.write_all(answer).await.is_err() {
                    break;
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_listening_port_passes_and_a_closed_one_is_refused() {
    let listener = TcpListener::bind((HOME, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    ask(ProbeCheck::Tcp { port }, PATIENCE).await.unwrap();
    drop(listener);
    for check in [ProbeCheck::Tcp { port }, http(port), grpc(port)] {
        let failure = ask(check, PATIENCE).await.unwrap_err();
        assert!(failure.unreached() && failure.blames_pod(), "{failure:?}");
        assert_eq!(failure.to_string(), format!("cannot connect to 127.0.0.1:{port}"));
    }
}

#[tokio::test]
async fn who_accepts_and_never_answers_fails_at_the_deadline() {
    let (port, _server) = server(|stream| async move {
        let _open = stream;
        std::future::pending::<()>().await;
    })
    .await;
    for check in [http(port), grpc(port)] {
        let failure = ask(check, SHORT).await.unwrap_err();
        assert!(matches!(failure, ProbeFailure::Deadline), "{failure:?}");
        assert!(!failure.unreached(), "the pod was reached");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_connection_that_does_not_come_about_in_time_counts_as_unreached() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((HOME, 0).into()).unwrap();
    let listener = socket.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    // Once the queue of a listener that never accepts is full, the kernel answers no more.
    let mut waiting = Vec::new();
    while let Ok(stream) = timeout(SHORT, TcpStream::connect(address)).await {
        waiting.push(stream.unwrap());
    }
    let failure = ask(http(address.port()), SHORT).await.unwrap_err();
    assert!(matches!(failure, ProbeFailure::Connect { .. }) && failure.unreached(), "{failure:?}");
}

#[tokio::test]
async fn an_http_answer_is_judged_by_its_status_and_a_readable_body() {
    type Passes = fn(&Result<(), ProbeFailure>) -> bool;
    let status = |result: &Result<(), ProbeFailure>| matches!(result, Err(ProbeFailure::Status(status)) if !(200..400).contains(&status.as_u16()));
    let broken: Passes = |result| matches!(result, Err(ProbeFailure::Http(_)));
    let table: [(&'static [u8], usize, Passes); 13] = [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", 1, Result::is_ok),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 1, Result::is_ok),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 1, Result::is_ok),
        (b"HTTP/1.1 399 Odd\r\ncontent-length: 0\r\n\r\n", 1, Result::is_ok),
        // An endless body, of which the probe reads only ten kibibytes.
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", 1_000_000, Result::is_ok),
        (b"HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n\r\n", 1, status),
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n", 1, status),
        (b"HTTP/1.1 503 No\r\n\r\n", 1_000_000, status),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", 1, status),
        (b"SSH-2.0-OpenSSH_9.6\r\n", 1, broken),
        (b"", 1, broken),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort", 1, broken),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 1, broken),
    ];
    for (answer, times, passes) in table {
        let (port, _server) = says(answer, times).await;
        let result = ask(http(port), PATIENCE).await;
        assert!(passes(&result), "{}: {result:?}", String::from_utf8_lossy(answer));
    }
}

#[tokio::test]
async fn an_endless_head_is_cut_off() {
    let (port, _server) =
        says(b"HTTP/1.1 200 OK\r\nx-filler: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", usize::MAX).await;
    let failure = ask(http(port), PATIENCE).await.unwrap_err();
    assert!(matches!(failure, ProbeFailure::Http(_)), "{failure:?}");
}

#[tokio::test]
async fn a_body_that_neither_ends_nor_goes_on_fails_at_the_deadline() {
    let (port, _server) = server(|mut stream| async move {
        let mut head = [0; 4096];
        // An answer to a request that was not sent yet is an error of its own.
        assert!(stream.read(&mut head).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nsome").await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let failure = ask(http(port), SHORT).await.unwrap_err();
    assert!(matches!(failure, ProbeFailure::Deadline), "{failure:?}");
}

/// A real HTTP/1 server that records its requests.
async fn recorder(
    answer: fn(u16) -> Response<Full<Bytes>>,
) -> (u16, Arc<Mutex<Vec<(String, HeaderMap)>>>, JoinSet<()>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&asked);
    let (port, tasks) = server(move |stream| {
        let record = Arc::clone(&record);
        async move {
            let port = stream.local_addr().unwrap().port();
            let service = service_fn(move |request: Request<Incoming>| {
                let asked = (format!("{} {}", request.method(), request.uri()), request.headers().clone());
                record.lock().unwrap().push(asked);
                async move { Ok::<_, Infallible>(answer(port)) }
            });
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            connection.await.unwrap();
        }
    })
    .await;
    (port, asked, tasks)
}

#[tokio::test]
async fn a_redirect_passes_and_is_not_followed() {
    let (port, asked, _server) = recorder(|port| {
        let there = format!("http://127.0.0.1:{port}/elsewhere");
        Response::builder().status(302).header("location", there).body(Full::default()).unwrap()
    })
    .await;
    ask(http(port), PATIENCE).await.unwrap();
    let asked: Vec<String> = asked.lock().unwrap().iter().map(|(line, _)| line.clone()).collect();
    assert_eq!(asked, ["GET /healthz?full=1"]);
}

#[tokio::test]
async fn the_probes_headers_outrank_ours_but_not_the_framing() {
    let (port, asked, _server) = recorder(|_| Response::new(Full::default())).await;
    ask(http(port), PATIENCE).await.unwrap();
    let own = [
        ("Host", "shop.example"),
        ("X-Two", "1"),
        ("x-two", "2"),
        ("Content-Length", "7"),
        ("Accept", "a/b"),
    ];
    let headers = own.map(|(name, value)| (name.into(), value.into())).to_vec();
    ask(ProbeCheck::Http { port, path: "bare".into(), tls: false, headers }, PATIENCE).await.unwrap();

    let asked = asked.lock().unwrap();
    let all = |at: usize, name: &str| -> Vec<String> {
        asked[at].1.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(all(0, "host"), [format!("127.0.0.1:{port}")]);
    assert!(all(0, "user-agent")[0].starts_with("kube-probe/"));
    assert_eq!((all(0, "accept"), all(0, "connection")), (vec!["*/*".into()], vec!["close".into()]));
    assert_eq!(asked[1].0, "GET /bare");
    assert_eq!((all(1, "host"), all(1, "accept")), (vec!["shop.example".into()], vec!["a/b".into()]));
    assert_eq!((all(1, "x-two").len(), all(1, "content-length").len()), (2, 0));
}

#[tokio::test]
async fn an_impossible_check_is_an_error_before_any_address_is_dialled() {
    let odd = |path: &str, name: &str, value: &str| ProbeCheck::Http {
        port: 1,
        path: path.into(),
        tls: false,
        headers: vec![(name.into(), value.into())],
    };
    for check in [odd("/a b", "x", "y"), odd("/", "no good", "y"), odd("/", "x", "a\r\nb: c")] {
        let failure = ask(check, PATIENCE).await.unwrap_err();
        assert!(matches!(failure, ProbeFailure::InvalidRequest(_)), "{failure:?}");
    }
}

#[tokio::test]
async fn every_question_of_a_plan_must_be_answered_well() {
    let (good, _first) = says(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 1).await;
    let (bad, _second) = says(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n", 1).await;
    let deadline = Instant::now() + PATIENCE;
    probe(HOME, &plan([http(good), ProbeCheck::Tcp { port: bad }]), deadline).await.unwrap();
    let failure = probe(HOME, &plan([http(good), http(bad)]), deadline).await.unwrap_err();
    assert_eq!(failure.to_string(), "the response has HTTP status 500 Internal Server Error");
}

/// What a gRPC server sends: HTTP status, headers, body, trailers.
#[derive(Clone, Default)]
struct Call {
    status: u16,
    headers: Vec<(&'static str, &'static str)>,
    body: Vec<u8>,
    trailers: Option<&'static str>,
}

/// A real HTTP/2 server that gives the same response to every correct call.
async fn grpc_server(call: Call) -> (u16, JoinSet<()>) {
    server(move |stream| {
        let call = call.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let call = call.clone();
            async move {
                assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                assert_eq!(request.headers()["content-type"], "application/grpc");
                let asked = request.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(asked[..], *b"\0\0\0\0\x0b\x0a\x09shop.Cart");
                let trailers = call.trailers.map(|status| {
                    Ok(HeaderMap::from_iter([("grpc-status".parse().unwrap(), status.parse().unwrap())]))
                });
                let body = Full::new(Bytes::from(call.body)).with_trailers(async { trailers });
                let mut response = Response::builder().status(call.status);
                for (name, value) in call.headers {
                    response = response.header(name, value);
                }
                Ok::<_, Infallible>(response.body(body).unwrap())
            }
        });
        async move {
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // The client disconnects as soon as it has the result.
            _ = builder.serve_connection(TokioIo::new(stream), service).await;
        }
    })
    .await
}

async fn ask_grpc(call: Call) -> Result<(), ProbeFailure> {
    let (port, _server) = grpc_server(call).await;
    ask(grpc(port), PATIENCE).await
}

const GRPC: (&str, &str) = ("content-type", "application/grpc+proto");
const SERVING: [u8; 7] = [0, 0, 0, 0, 2, 8, 1];

fn answers(body: &[u8], status: &'static str) -> Call {
    Call { status: 200, headers: vec![GRPC], body: body.to_vec(), trailers: Some(status) }
}

#[tokio::test]
async fn a_grpc_server_passes_only_if_it_says_serving() {
    ask_grpc(answers(&SERVING, "0")).await.unwrap();
    for (said, health) in
        [(0, ServingStatus::Unknown), (2, ServingStatus::NotServing), (3, ServingStatus::ServiceUnknown)]
    {
        let failure = ask_grpc(answers(&[0, 0, 0, 0, 2, 8, said], "0")).await.unwrap_err();
        assert!(matches!(failure, ProbeFailure::NotServing(is) if is == health), "{failure:?}");
    }
    let failure = ask_grpc(answers(&SERVING[..6], "0")).await.unwrap_err();
    assert!(matches!(failure, ProbeFailure::BadHealth(BadHealth::Truncated)), "{failure:?}");
}

#[tokio::test]
async fn a_failed_call_fails_wherever_its_status_stands() {
    let early =
        |status| Call { status: 200, headers: vec![GRPC, ("grpc-status", status)], ..Call::default() };
    for call in [answers(&SERVING, "12"), answers(b"", "12"), early("12")] {
        let failure = ask_grpc(call).await.unwrap_err();
        assert!(matches!(failure, ProbeFailure::GrpcStatus(12)), "{failure:?}");
    }
    let without = Call { trailers: None, ..answers(&SERVING, "0") };
    let plain = Call { headers: vec![("content-type", "text/plain")], ..answers(&SERVING, "0") };
    for call in [without, plain, answers(&SERVING, "ok"), early("-1"), answers(&[0; 12_000], "0")] {
        let failure = ask_grpc(call).await.unwrap_err();
        assert!(matches!(failure, ProbeFailure::NotGrpc(_)), "{failure:?}");
    }
    let failure = ask_grpc(Call { status: 503, ..answers(&SERVING, "0") }).await.unwrap_err();
    assert!(matches!(failure, ProbeFailure::Status(_)), "{failure:?}");
}

#[tokio::test]
async fn a_server_that_speaks_no_http2_fails_as_grpc() {
    let (port, _server) = says(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n", 1).await;
    let failure = ask(grpc(port), PATIENCE).await.unwrap_err();
    assert!(matches!(failure, ProbeFailure::Http(_)), "{failure:?}");
}

#[tokio::test]
async fn a_pod_is_asked_at_its_ipv6_address_too() {
    let Ok(listener) = TcpListener::bind("[::1]:0").await else {
        eprintln!("SKIPPED: this machine has no IPv6");
        return;
    };
    let address: SocketAddr = listener.local_addr().unwrap();
    let mut server = JoinSet::new();
    server.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = vec![0; 4096];
        let read = stream.read(&mut head).await.unwrap();
        let host = format!("\r\nHost: [::1]:{}\r\n", address.port());
        assert!(String::from_utf8_lossy(&head[..read]).contains(&host));
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    });
    probe(address.ip(), &plan([http(address.port())]), Instant::now() + PATIENCE).await.unwrap();
    server.join_next().await.unwrap().unwrap();
}
