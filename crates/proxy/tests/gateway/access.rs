//! The entries of the access log.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Version;
use rouse_proxy::telemetry::access_log::{AccessLog, AccessLogEntry};
use rouse_proxy::upstream::Timeouts;
use rouse_testkit::fakes::READY;

use crate::http2_peers::H2Client;
use crate::rig::{Options, Pod, Rig, eventually};

/// One entry of the access log.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) request: String,
    version: Version,
    host: String,
    pub(crate) status: u16,
    sent: u64,
    agent: String,
    referer: String,
    pub(crate) route: String,
    upstream: Option<SocketAddr>,
    cold_start: bool,
    pub(crate) error: Option<String>,
    trace: Option<String>,
}

/// A log that keeps its entries, and reports a given number of lost ones.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    lines: Mutex<Vec<Line>>,
    lost: u64,
}

impl AccessLog for Kept {
    fn write(&self, entry: &AccessLogEntry<'_>) -> u64 {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(entry.client.ip().is_loopback() && entry.took > Duration::ZERO, "{entry:?}");
        self.lines.lock().unwrap().push(Line {
            request: format!("{} {}", entry.method, entry.target),
            version: entry.version,
            host: text(entry.host),
            status: entry.status,
            sent: entry.sent,
            agent: text(entry.agent),
            referer: text(entry.referer),
            route: entry.route.into(),
            upstream: entry.upstream,
            cold_start: entry.cold_start,
            error: entry.error.map(Into::into),
            trace: entry.trace.map(Into::into),
        });
        self.lost
    }
}

impl Kept {
    pub(crate) fn options(self: &Arc<Self>) -> Options {
        Options { access: Some(Arc::clone(self) as _), ..Options::default() }
    }

    /// Waits for the next entry.
    pub(crate) async fn next(&self) -> Line {
        eventually("it is written down", || !self.lines.lock().unwrap().is_empty()).await;
        self.lines.lock().unwrap().remove(0)
    }
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[tokio::test]
async fn an_access_log_entry_has_all_known_fields() {
    let log = Arc::<Kept>::default();
    let rig = Rig::new(log.options());
    let pod = Pod::new(1).await;
    let mut client = rig
        .send_held(&format!(
            "POST /a?b=c HTTP/1.1\r\nHost: cart.test\r\nUser-Agent: curl\r\nReferer: http://x.test/\r\n\
             Content-Length: 3\r\ntraceparent: 00-{TRACE}-b7ad6b7169203331-01\r\n\r\nabc"
        ))
        .await;
    rig.pods(&[(&pod, READY)]);
    let mut wire = pod.accept().await;
    wire.until("abc").await;
    wire.write(
        "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n",
    )
    .await;
    client.until("0\r\n\r\n").await;
    let line = Line {
        request: "POST /a?b=c".into(),
        version: Version::HTTP_11,
        host: "cart.test".into(),
        status: 201,
        sent: 7,
        agent: "curl".into(),
        referer: "http://x.test/".into(),
        route: "cart".into(),
        upstream: Some(pod.address),
        cold_start: true,
        error: None,
        trace: Some(TRACE.into()),
    };
    assert_eq!(log.next().await, line);

    drop(wire);
    let _pod = pod.serve();
    let client = H2Client::new(&rig).await;
    let answer = client.get("http://cart.test/2").await;
    assert_eq!(answer.body().await, b"hello");
    let second = log.next().await;
    assert_eq!(second.trace, None, "the client has not begun one, and the gateway begins none");
    assert_eq!((&*second.host, second.version, second.sent), ("cart.test", Version::HTTP_2, 5));
    assert_eq!((second.cold_start, &*second.agent), (false, ""));
}

#[tokio::test]
async fn failures_and_clients_that_left_are_logged_with_their_code() {
    let log = Arc::<Kept>::default();
    let timeouts = Timeouts { readiness: Some(Duration::from_millis(50)), ..Timeouts::default() };
    let rig = Rig::new(Options { timeouts, ..log.options() });
    let answer = rig.get("/late").await;
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let line = log.next().await;
    assert_eq!((line.status, line.error.as_deref(), line.upstream), (504, Some("readiness_timeout"), None));
    assert_eq!(line.sent, body.len() as u64);

    let mut client = rig.send("HEAD / HTTP/1.1\r\nHost: else.test\r\n\r\n").await;
    client.head().await;
    let line = log.next().await;
    assert_eq!((line.status, line.error.as_deref(), &*line.route), (404, Some("no_route"), "none"));
    assert_eq!((&*line.host, line.sent), ("else.test", 0));

    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    let begin_response = async |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: cart.test\r\n\r\n");
        let (mut client, mut wire) = rig.send_to(&pod, &request).await;
        wire.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc").await;
        client.until("abc").await;
        (client, wire)
    };
    let (client, _wire) = begin_response("/begun").await;
    client.reset();
    let line = log.next().await;
    assert_eq!((line.status, line.error.as_deref(), line.sent), (499, Some("client_gone"), 3));
    assert_eq!(line.upstream, Some(pod.address));

    let (mut client, wire) = begin_response("/broken").await;
    drop(wire);
    client.rest().await;
    let line = log.next().await;
    assert_eq!((line.status, line.error.as_deref()), (502, Some("upstream_reset")));
}

#[tokio::test]
async fn an_upgraded_connection_is_logged_at_its_end() {
    let log = Arc::<Kept>::default();
    let (rig, pod) = Rig::with_pod(log.options()).await;
    let (mut client, mut wire) = rig
        .send_to(&pod, "GET /ws HTTP/1.1\r\nHost: cart.test\r\nConnection: Upgrade\r\nUpgrade: rot13\r\n\r\n")
        .await;
    wire.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: rot13\r\n\r\nhello")
        .await;
    client.until("hello").await;
    assert_eq!(log.lines.lock().unwrap().len(), 0);
    drop((client, wire));
    let line = log.next().await;
    assert_eq!((line.status, line.sent, line.upstream), (101, 5, Some(pod.address)));
}

#[tokio::test]
async fn lines_that_were_lost_are_counted() {
    let log = Arc::new(Kept { lost: 3, ..Kept::default() });
    let rig = Rig::new(log.options());
    rig.no_pod(rouse_proxy::routing::NoPodPolicy {
        fixed: Some(rouse_proxy::routing::FixedResponse {
            response: crate::no_pod::page(),
            when_unavailable: false,
        }),
        ..Default::default()
    });
    for _ in 0..2 {
        rig.get("/").await;
        log.next().await;
    }
    eventually("they are counted", || rig.metric("rouse_access_log_dropped_total") == 6).await;
}
