//! Attacks on the TLS listener: during the handshake, instead of it, and after it.

use std::sync::Arc;
use std::time::Duration;

use rouse_net::tls::{
    Alpn, CertEntry, ClientSettings, ClientStream, ClientTls, Roots, ServerName, ServerSettings, ServerTls,
};
use rouse_proxy::budget::ConnectionLimits;
use rouse_testkit::certificates::Leaf;
use rouse_testkit::fakes::READY;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, timeout};

use crate::frames::{SETTINGS, frame};
use crate::kit::{Attacker, Honest, RecordingPod, SMUGGLED, limited_in_number_alone, open};
use crate::rig::{Options, PATIENCE, Pod, Rig, eventually};

const HOST: &str = "cart.test";
/// Short timeouts for handshakes and heads.
fn short() -> ConnectionLimits {
    ConnectionLimits { head: Duration::from_millis(1500), ..ConnectionLimits::default() }
}

/// A gateway with only a TLS listener, in front of a recording pod.
async fn secure(limits: ConnectionLimits) -> (Rig, RecordingPod) {
    let entry = CertEntry { identity: Leaf::self_signed(&[HOST]).identity(), names: Vec::new() };
    let (tls, _) = ServerTls::new(ServerSettings::new(vec![entry])).unwrap();
    let rig = Rig::behind(Options { limits, ..Options::default() }, Some(&Arc::new(tls)));
    let pod = Pod::new(1).await;
    rig.pods(&[(&pod, READY)]);
    (rig, RecordingPod::new(pod))
}

/// A client that trusts every certificate.
fn client(alpn: Alpn) -> ClientTls {
    let name = ServerName::try_from(HOST).unwrap();
    let settings =
        ClientSettings { verify: false, alpn: vec![alpn], ..ClientSettings::new(name, Roots::System) };
    ClientTls::new(settings).unwrap().0
}

async fn shake(rig: &Rig, alpn: Alpn) -> ClientStream<TcpStream> {
    let stream = TcpStream::connect(rig.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (stream, agreed) = client(alpn).connect(stream, Instant::now() + PATIENCE).await.unwrap();
    assert_eq!(agreed, Some(alpn));
    stream
}

/// The same, with these first bytes.
async fn shake_and_send(rig: &Rig, alpn: Alpn, begin: &str) -> ClientStream<TcpStream> {
    let mut stream = shake(rig, alpn).await;
    stream.write_all(begin.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

/// Asserts that the gateway ends the connection.
async fn ends(mut stream: ClientStream<TcpStream>) {
    let ended = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
    drop(ended.expect("the connection should end"));
}

async fn honest(rig: &Rig) -> Honest {
    Honest::over(shake(rig, Alpn::Http1).await, HOST).await
}

/// A client's first message: its `ClientHello`.
async fn hello() -> Vec<u8> {
    let (ours, mut theirs) = duplex(64 * 1024);
    let saying = client(Alpn::H2);
    let listening = async {
        let mut head = [0; 5];
        theirs.read_exact(&mut head).await.unwrap();
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
        theirs.read_exact(&mut body).await.unwrap();
        [&head[..], &body].concat()
    };
    tokio::select! {
        hello = listening => hello,
        _ = saying.connect(ours, Instant::now() + PATIENCE) => Vec::new(),
    }
}

/// Sends a byte of `text` now and then, and reads to the end of the connection, which must come.
async fn trickle(stream: &mut ClientStream<TcpStream>, text: &str) -> Vec<u8> {
    let mut pace = interval(Duration::from_millis(20));
    let (mut sent, mut got) = (text.bytes().cycle(), Vec::new());
    let trickling = async {
        loop {
            tokio::select! {
                read = stream.read_buf(&mut got) => if matches!(read, Ok(0) | Err(_)) { return },
                _ = pace.tick() => {
                    let byte = [sent.next().unwrap_or(b'a')];
                    // Ignored: the read shows that the connection is closed.
                    stream.write_all(&byte).await.ok();
                    stream.flush().await.ok();
                }
            }
        }
    };
    timeout(PATIENCE, trickling).await.expect("the connection should end");
    got
}

#[tokio::test]
async fn bytes_that_are_no_handshake_end_only_their_connection() {
    let (rig, recording_pod) = secure(short()).await;
    let honest = honest(&rig).await.throughout();
    let hello = hello().await;
    let mut damaged = hello.clone();
    damaged[9..60].fill(0xff);
    let begins: [&[u8]; 14] = [
        b"",
        b"\x16",
        b"\x16\x03\x01\x02\x00\x01",
        &hello[..hello.len() / 2],
        &damaged,
        &[hello.as_slice(), &hello].concat(),
        // A record with the largest possible length, which is more than allowed.
        b"\x16\x03\x01\xff\xff\x01\x00\xff\xfb",
        // An alert, application data, a heartbeat, an empty record, SSL 2.
        b"\x15\x03\x03\x00\x02\x02\x28",
        b"\x17\x03\x03\x00\x05hello",
        b"\x18\x03\x03\x00\x03\x01\x40\x00",
        b"\x16\x03\x03\x00\x00",
        b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10",
        SMUGGLED.as_bytes(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ];
    for begin in begins {
        let said = Attacker::sending(&rig, begin).await.raw_rest().await;
        let shown = &begin[..begin.len().min(16)];
        // At most the server's part of a handshake, or an alert.
        assert!(said.is_empty() || said[0] == 0x15 || said[0] == 0x16, "{shown:?}: {said:?}");
    }
    let noise: Vec<u8> =
        (0..1 << 20).map(|at: u32| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    Attacker::exchange(&rig, noise).await;
    honest.was_served().await;
    recording_pod.is_clean();
}

#[tokio::test]
async fn a_handshake_that_trickles_is_cut_off() {
    let (rig, _recording_pod) = secure(short()).await;
    let honest = honest(&rig).await.throughout();
    let hello = hello().await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        slow.push(Attacker::new(&rig).await);
    }
    let mut pace = interval(Duration::from_millis(20));
    let mut sent = 0;
    while open(&slow) > 0 {
        pace.tick().await;
        assert!(sent < hello.len(), "they are still there after {sent} bytes");
        for attacker in &mut slow {
            attacker.send(&hello[sent..=sent]).await;
        }
        sent += 1;
    }
    honest.was_served().await;
}

#[tokio::test]
async fn a_head_that_trickles_over_tls_is_cut_off() {
    let (rig, recording_pod) = secure(short()).await;
    let honest = honest(&rig).await.throughout();
    for (alpn, begin, more) in [
        (Alpn::Http1, "GET /slow HTTP/1.1\r\nHost: cart.test\r\nX-A: ", "a"),
        (Alpn::Http1, "", "GET /slow-------------------------------------------------------------"),
        (Alpn::Http1, "GET /once HTTP/1.1\r\nHost: cart.test\r\n\r\nGET /slow HTTP/1.1\r\nX-A: ", "a"),
        (Alpn::H2, "", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"),
        // Half a HEADERS frame.
        (Alpn::H2, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\x3f\0\x01\x05\0\0\0\x01", "a"),
    ] {
        let mut stream = shake_and_send(&rig, alpn, begin).await;
        let got = trickle(&mut stream, more).await;
        let once = String::from_utf8_lossy(&got).matches("/once").count();
        assert_eq!(once, usize::from(begin.contains("/once")), "{begin:?}");
    }
    honest.was_served().await;
    assert_eq!(recording_pod.count("/slow"), 0);
}

#[tokio::test]
async fn idle_tls_connections_are_cut_with_any_protocol() {
    let (rig, _recording_pod) = secure(ConnectionLimits { idle: Duration::from_secs(2), ..short() }).await;
    let honest = honest(&rig).await.throughout();
    for (alpn, begin) in [
        (Alpn::Http1, String::new()),
        (Alpn::H2, String::new()),
        (Alpn::H2, "PRI * HT".to_owned()),
        (
            Alpn::H2,
            format!(
                "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{}",
                String::from_utf8(frame(SETTINGS, 0, 0, &[])).unwrap()
            ),
        ),
    ] {
        ends(shake_and_send(&rig, alpn, &begin).await).await;
    }
    honest.was_served().await;
}

/// Bytes of a renegotiation, or of a man in the middle.
#[tokio::test]
async fn what_is_not_sealed_after_the_handshake_ends_the_connection() {
    let (rig, recording_pod) = secure(ConnectionLimits::default()).await;
    let honest = honest(&rig).await.throughout();
    let hello = hello().await;
    let sealed = [&b"\x17\x03\x03\x00\x40"[..], &[7; 64]].concat();
    let injected: [&[u8]; 6] = [
        &hello,
        SMUGGLED.as_bytes(),
        &sealed,
        b"\x14\x03\x03\x00\x01\x01\x14\x03\x03\x00\x01\x01",
        b"\x16\x03\x03\x00\x04\x00\x00\x00\x00",
        b"\x15\x03\x03\x00\x02\x01\x00",
    ];
    for alpn in [Alpn::Http1, Alpn::H2] {
        for bytes in injected {
            let mut stream = shake(&rig, alpn).await;
            if alpn == Alpn::Http1 {
                let (request, mut answer) = ("GET /before HTTP/1.1\r\nHost: cart.test\r\n\r\n", Vec::new());
                stream.write_all(request.as_bytes()).await.unwrap();
                while !answer.ends_with(b"/before") {
                    timeout(PATIENCE, stream.read_buf(&mut answer)).await.unwrap().unwrap();
                }
            }
            // Written below TLS, directly to the socket.
            stream.get_mut().0.write_all(bytes).await.unwrap();
            ends(stream).await;
        }
    }
    honest.was_served().await;
    recording_pod.is_clean();
    assert_eq!(recording_pod.count("GET /before "), injected.len());
}

#[tokio::test]
async fn two_thousand_half_handshakes_do_not_lock_out_clients() {
    const MOST: usize = 500;
    let (rig, recording_pod) = secure(limited_in_number_alone(MOST)).await;
    let honest = honest(&rig).await.throughout();
    let hello = hello().await;
    let mut attackers = Vec::new();
    for number in 0..2000 {
        // Nothing, half a ClientHello, or a whole one without the rest of the handshake.
        let length = [0, hello.len() / 2, hello.len()][number % 3];
        attackers.push(Attacker::sending(&rig, &hello[..length]).await);
        if number % 500 == 499 {
            eventually("the connections keep to their limit", || open(&attackers) < MOST).await;
        }
    }
    // A new client completes the handshake and is served.
    let newcomer = self::honest(&rig).await;
    drop(newcomer);
    honest.was_served().await;
    recording_pod.is_clean();
}
