//! Helpers of the attack tests: the attacker's socket, a pod that records every byte, and an honest client.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rouse_proxy::budget::ConnectionLimits;
use rouse_testkit::fakes::READY;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use crate::rig::{Options, PATIENCE, Pod, Rig};

/// The request that an attacker tries to smuggle past the gateway.
pub(crate) const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: cart.test\r\n\r\n";

/// An attacker's connection. The gateway may close it or answer with errors.
pub(crate) struct Attacker(pub(crate) TcpStream);

impl Attacker {
    pub(crate) async fn new(rig: &Rig) -> Self {
        let stream = TcpStream::connect(rig.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    /// A connection on which these bytes are sent.
    pub(crate) async fn sending(rig: &Rig, bytes: impl AsRef<[u8]>) -> Self {
        let mut attacker = Self::new(rig).await;
        attacker.send(bytes).await;
        attacker
    }

    /// Sends these bytes on a new connection. Returns everything up to its end, which must come.
    pub(crate) async fn exchange(rig: &Rig, bytes: impl AsRef<[u8]>) -> String {
        Self::sending(rig, bytes).await.rest().await
    }

    /// A pod's side of the next connection that the gateway makes, once the head of its first request is read.
    pub(crate) async fn as_pod(pod: &Pod) -> Self {
        Self(pod.accept_request_raw().await)
    }

    /// Sends bytes. Returns whether the write succeeded.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        let sent = timeout(PATIENCE, self.0.write_all(bytes.as_ref())).await;
        sent.expect("the gateway should take it, or cut the connection").is_ok()
    }

    /// Closes the sending side.
    pub(crate) async fn shut(&mut self) {
        self.0.shutdown().await.ok();
    }

    /// Everything up to the end of the connection, which must come.
    pub(crate) async fn rest(&mut self) -> String {
        String::from_utf8_lossy(&self.raw_rest().await).into_owned()
    }

    /// The same as bytes.
    pub(crate) async fn raw_rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let read = timeout(PATIENCE, self.0.read_to_end(&mut all)).await;
        drop(read.expect("the connection should end"));
        all
    }

    /// Exactly `length` bytes, which must arrive.
    pub(crate) async fn exactly(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let read = timeout(PATIENCE, self.0.read_exact(&mut bytes)).await;
        read.expect("more should come").expect("the connection should stand");
        bytes
    }

    /// The head of a message, which must arrive.
    pub(crate) async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let byte = timeout(PATIENCE, self.0.read_u8()).await.expect("a head should come");
            head.push(byte.expect("the connection should stand"));
        }
        String::from_utf8_lossy(&head).into_owned()
    }

    /// Whether any bytes have arrived by now.
    pub(crate) fn has_read(&self) -> bool {
        self.0.try_read(&mut [0]).is_ok()
    }

    /// Whether the connection is open, as far as known now. Discards received bytes.
    pub(crate) fn is_open(&self) -> bool {
        let mut some = [0; 1024];
        loop {
            match self.0.try_read(&mut some) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// A pod that records what it gets, byte for byte, and answers each request with its path, so that a client recognises a response
/// to the request of another.
pub(crate) struct RecordingPod {
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    _tasks: JoinSet<()>,
}

impl RecordingPod {
    pub(crate) fn new(pod: Pod) -> Self {
        let seen = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let (mut tasks, shared) = (JoinSet::new(), Arc::clone(&seen));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let stream = pod.accept_raw().await;
                let place = {
                    let mut seen = shared.lock().unwrap();
                    seen.push(Vec::new());
                    seen.len() - 1
                };
                connections.spawn(testify(stream, Arc::clone(&shared), place));
            }
        });
        Self { seen, _tasks: tasks }
    }

    /// All received bytes, one text per connection.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }

    /// How often `text` was received.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.seen().iter().map(|connection| connection.matches(text).count()).sum()
    }

    /// Asserts that no smuggled request was received.
    pub(crate) fn is_clean(&self) {
        for connection in self.seen() {
            let lower = connection.to_ascii_lowercase();
            assert!(!lower.contains("smuggled") && !lower.contains('\0'), "{connection}");
        }
    }
}

async fn testify(mut stream: TcpStream, seen: Arc<Mutex<Vec<Vec<u8>>>>, place: usize) {
    let (mut text, mut some) = (Vec::new(), [0; 16 * 1024]);
    loop {
        let length = stream.read(&mut some).await.unwrap_or(0);
        if length == 0 {
            return;
        }
        text.extend_from_slice(&some[..length]);
        seen.lock().unwrap()[place].extend_from_slice(&some[..length]);
        while let Some((path, end)) = request(&text) {
            text.drain(..end);
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len());
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// The path of the first request, and where it ends, once it is complete.
fn request(bytes: &[u8]) -> Option<(String, usize)> {
    let text = String::from_utf8_lossy(bytes);
    let head = text.find("\r\n\r\n")? + 4;
    let lower = text.get(..head)?.to_ascii_lowercase();
    let path = text.split(' ').nth(1)?.to_owned();
    let end = if lower.contains("\r\ntransfer-encoding: chunked\r\n") {
        head + text.get(head..)?.find("0\r\n\r\n")? + 5
    } else if let Some((_, rest)) = lower.split_once("\r\ncontent-length: ") {
        head + rest.split("\r\n").next()?.parse::<usize>().ok()?
    } else {
        head
    };
    (bytes.len() >= end).then_some((path, end))
}

/// A gateway in front of a recording pod.
pub(crate) async fn scene(options: Options) -> (Rig, RecordingPod) {
    let (rig, pod) = Rig::with_pod(options).await;
    (rig, RecordingPod::new(pod))
}

/// The same, with an honest client of it.
pub(crate) async fn scene_with_honest(options: Options) -> (Rig, RecordingPod, Honest) {
    let (rig, recording_pod) = scene(options).await;
    let honest = Honest::new(&rig).await;
    (rig, recording_pod, honest)
}

/// A gateway in front of a hostile pod, which the test plays, and an honest client of another service.
pub(crate) async fn hostile_pod_scene(options: Options) -> (Rig, Pod, RecordingPod, Honest) {
    let (rig, pod) = Rig::with_pod(options).await;
    let recording_pod = second_service(&rig).await;
    let honest = Honest::of(&rig, "second.test").await;
    (rig, pod, recording_pod, honest)
}

/// A limit on the number of connections, without timeouts for idle or slow ones.
pub(crate) fn limited_in_number_alone(connections: usize) -> ConnectionLimits {
    let (idle, head) = (Duration::from_hours(1), Duration::from_hours(1));
    ConnectionLimits { connections, idle, head, ..ConnectionLimits::default() }
}

/// One more service, `shop/second` at `second.test`, for honest clients while the pod of the other is hostile.
async fn second_service(rig: &Rig) -> RecordingPod {
    let pod = Pod::new(2).await;
    Rig::slices_of(&rig.add("second"), &[(2, pod.address, READY)]);
    RecordingPod::new(pod)
}

/// A transport for a connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A client with a persistent connection that checks that it gets its own responses.
pub(crate) struct Honest {
    stream: Box<dyn Stream>,
    host: &'static str,
    asked: usize,
}

impl Honest {
    pub(crate) async fn new(rig: &Rig) -> Self {
        Self::of(rig, "cart.test").await
    }

    pub(crate) async fn of(rig: &Rig, host: &'static str) -> Self {
        let stream = TcpStream::connect(rig.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(stream, host).await
    }

    /// Over an existing connection.
    pub(crate) async fn over(stream: impl Stream + 'static, host: &'static str) -> Self {
        let mut honest = Self { stream: Box::new(stream), host, asked: 0 };
        honest.is_served().await;
        honest
    }

    /// Sends one more request, and asserts that it is served.
    pub(crate) async fn is_served(&mut self) {
        self.asked += 1;
        let (path, host) = (format!("/honest/{}", self.asked), self.host);
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let asking = async {
            self.stream.write_all(request.as_bytes()).await.unwrap();
            self.stream.flush().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(self.stream.read_u8().await.expect("it should be served"));
            }
            let mut body = vec![0; path.len()];
            self.stream.read_exact(&mut body).await.expect("it should be served whole");
            (String::from_utf8(head).unwrap(), String::from_utf8(body).unwrap())
        };
        let (head, body) = timeout(PATIENCE, asking).await.expect("it should be served in time");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", path.len())), "{head}");
        assert_eq!(body, path, "{head}");
    }

    /// Sends requests until it is stopped.
    pub(crate) fn throughout(mut self) -> Throughout {
        let (stop, mut asking) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        let stopped = Arc::clone(&stop);
        asking.spawn(async move {
            let mut pace = interval(Duration::from_millis(5));
            while !stopped.load(Ordering::Relaxed) {
                pace.tick().await;
                self.is_served().await;
            }
            self.is_served().await;
        });
        Throughout { stop, asking }
    }
}

/// An honest client that sends requests during an attack.
pub(crate) struct Throughout {
    stop: Arc<AtomicBool>,
    asking: JoinSet<()>,
}

impl Throughout {
    /// Stops, and asserts that every request was served.
    pub(crate) async fn was_served(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = timeout(PATIENCE, self.asking.join_next()).await.expect("it should be served");
        ended.unwrap().unwrap();
    }
}

/// The number of attackers whose connections are still open, as far as known now.
pub(crate) fn open(attackers: &[Attacker]) -> usize {
    attackers.iter().filter(|attacker| attacker.is_open()).count()
}

/// Sends a byte on each connection now and then, until the gateway has closed all. Returns the number of rounds.
pub(crate) async fn trickle_until_cut(attackers: &mut [Attacker]) -> usize {
    let mut pace = interval(Duration::from_millis(20));
    let mut ticks = 0;
    while open(attackers) > 0 {
        pace.tick().await;
        ticks += 1;
        assert!(ticks < 1500, "they are still there after half a minute");
        for attacker in &mut *attackers {
            attacker.send("a").await;
        }
    }
    ticks
}
