//! The client commands of `rouse up` (`status`, `logs`, `scale`, `restart`), against the real admin API with fake apps.

use std::io::{self, Read as _, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use clap::Parser as _;
use rouse_cli::args::Rouse;
use rouse_cli::{CommandError, Streams};
use rouse_core::scale::{IdleExplanation, IdlePlan};
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_local::engine::AppStatus;
use rouse_local::output::{AppLog, Line, Stream};
use rouse_testkit::fakes::ready_slice;

use crate::scene::{Scene, app, pod_status};
use crate::server::Server;

/// What a command prints, or how it fails.
async fn rouse(admin: SocketAddr, words: &[&str]) -> Result<String, CommandError> {
    let admin = admin.to_string();
    let words: Vec<String> =
        ["rouse"].iter().chain(words).chain(&["--admin", &admin]).map(ToString::to_string).collect();
    // Each command has a runtime of its own.
    let command = tokio::task::spawn_blocking(move || {
        let (mut out, mut err) = (anstream::StripStream::new(Vec::new()), Vec::new());
        let rouse = Rouse::try_parse_from(words).unwrap();
        let mut streams = Streams { stdin: &mut io::empty(), out: &mut out, err: &mut err };
        rouse_cli::run(&rouse, &mut streams)?;
        Ok(String::from_utf8(out.into_inner()).unwrap())
    });
    command.await.unwrap()
}

async fn scene() -> (Scene, Server) {
    let scene = Scene::new();
    let hello =
        AppStatus { pods: vec![pod_status(1, 101), pod_status(2, 102)], desired: 2, ..app("local/hello") };
    scene.apps.set(vec![hello, app("local/slow")]);
    let server = Server::start(&scene).await;
    (scene, server)
}

#[tokio::test]
async fn status_is_a_table_or_what_the_api_says() {
    let (scene, server) = scene().await;
    let table = rouse(server.address, &["status"]).await.unwrap();
    for words in ["SERVICE", "local/hello", "waking", "0/2", "because", "local/slow", "zero", "pod-1", "101"]
    {
        assert!(table.contains(words), "{words} is missing in:\n{table}");
    }
    let json = rouse(server.address, &["status", "-o", "json"]).await.unwrap();
    assert_eq!(json.trim_end(), scene.get("/api/v1/services").await.text());
}

#[tokio::test]
async fn status_says_how_many_pods_are_wanted_only_where_rouse_scales() {
    let (scene, server) = scene().await;
    let (service, _) = scene.bench.service("cart", ConcurrencyLimits::default());
    service.put_slice("one", ready_slice(1));
    let table = rouse(server.address, &["status"]).await.unwrap();
    let pods = |name: &str| {
        let row = table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{table}"));
        row.split_whitespace().nth(2).unwrap().to_owned()
    };
    assert_eq!((pods("local/hello"), pods("shop/cart")), ("0/2".to_owned(), "1".to_owned()), "{table}");
    let json = scene.get("/api/v1/services").await.json();
    assert_eq!(json[2]["desired"], serde_json::Value::Null, "{json}");
}

#[tokio::test]
async fn explain_scaling_tells_of_an_app_what_a_controller_tells_of_a_workload() {
    let (scene, server) = scene().await;
    let second = Duration::from_secs;
    let idle = Some(IdleExplanation {
        gaps: vec![(second(85), second(95), 50.0)],
        seen: 50.0,
        needed: 20.0,
        start_time: second(2),
        plan: IdlePlan { stay: second(100), back: None },
        cost: second(90),
        fixed_cost: second(160),
        cold_start_cost: second(600),
    });
    let hello = AppStatus { desired: 1, pods: vec![pod_status(1, 101)], idle, ..app("local/hello") };
    scene.apps.set(vec![hello, app("local/slow")]);
    let said = rouse(server.address, &["explain", "scaling", "local/hello"]).await.unwrap();
    let expected = "app hello: scaled by Rouse\n  pods       0 ready of 1\n  policy     min 0, max 10\n  decision   1 pod: because\n";
    assert!(said.starts_with(expected), "{said}");
    for line in [
        "  idle       50.0 gaps between requests remembered; a start takes 2s, a cold start is worth 10m of an idle pod\n",
        "  choice     stays warm for 1m40s after a request, then goes to zero\n",
        "  because    a gap costs 1m30s of an idle pod on average, and 2m40s with the fixed idle-after\n",
    ] {
        assert!(said.contains(line), "{line}{said}");
    }
    let fixed = rouse(server.address, &["explain", "scaling", "local/slow"]).await.unwrap();
    assert!(fixed.ends_with("  decision   0 pods: because\n"), "{fixed}");
    let json = rouse(server.address, &["explain", "scaling", "local/hello", "-o", "json"]).await.unwrap();
    assert_eq!(json.trim_end(), scene.get("/api/v1/scaling/local/hello").await.text());
    let unknown = rouse(server.address, &["explain", "scaling", "local/other"]).await.unwrap_err();
    assert!(unknown.to_string().contains("the services are: local/hello, local/slow"), "{unknown}");
}

#[tokio::test]
async fn restart_waits_until_no_old_pod_is_left() {
    let (scene, server) = scene().await;
    let said = rouse(server.address, &["restart", "hello"]).await.unwrap();
    assert!(said.ends_with("hello: 2 of 2 pods replaced\n"), "{said}");
    let said = rouse(server.address, &["restart", "slow"]).await.unwrap();
    assert!(said.contains("nothing to replace"), "{said}");
    assert_eq!(scene.apps.orders(), ["restart hello", "restart slow"]);
}

#[tokio::test]
async fn a_restart_that_does_not_end_in_time_fails_and_says_why() {
    let (scene, server) = scene().await;
    let stuck = AppStatus {
        pods: vec![pod_status(1, 101)],
        rolling: true,
        trouble: Some("it will not start".into()),
        ..app("local/hello")
    };
    scene.apps.set(vec![stuck]);
    let error = rouse(server.address, &["restart", "hello", "--timeout", "300ms"]).await.unwrap_err();
    assert!(matches!(error, CommandError::Failed(_)), "{error:?}");
    assert!(error.to_string().contains("300ms: it will not start"), "{error}");
    rouse(server.address, &["restart", "hello", "--no-wait"]).await.unwrap();
}

#[tokio::test]
async fn a_restart_of_an_app_that_is_broken_fails_and_says_why() {
    let (scene, server) = scene().await;
    let trouble = Some("hello-1 exited with code 1; the next request starts it again".into());
    scene.apps.leave_after_restart(vec![AppStatus { trouble, ..app("local/hello") }]);
    let error = rouse(server.address, &["restart", "hello"]).await.unwrap_err();
    assert!(matches!(error, CommandError::Failed(_)), "{error:?}");
    let said = error.to_string();
    assert!(said.starts_with("hello: 0 of 2 pods replaced: hello-1 exited with code 1"), "{said}");
    assert!(said.contains("`rouse logs hello`"), "{said}");
}

#[tokio::test]
async fn scale_pins_and_gives_back() {
    let (scene, server) = scene().await;
    for pods in ["3", "0", "auto"] {
        rouse(server.address, &["scale", "hello", pods]).await.unwrap();
    }
    assert_eq!(scene.apps.orders(), ["scale hello Some(3)", "scale hello Some(0)", "scale hello None"]);
}

fn log_of_one_line() -> Arc<AppLog> {
    let log = AppLog::new(1000);
    log.push(Line { pod: "hello-1".into(), stream: Stream::Stderr, text: "oh".into() });
    log
}

#[tokio::test]
async fn logs_are_copied() {
    let (scene, server) = scene().await;
    scene.apps.keep_log(Some(log_of_one_line()));
    assert_eq!(rouse(server.address, &["logs", "hello"]).await.unwrap(), "hello-1 | oh\n");
}

/// A writer that blocks until it is released, like a pager.
struct Paused {
    gate: Receiver<()>,
    opened: bool,
    taken: usize,
}

impl Write for Paused {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.opened {
            self.gate.recv_timeout(Duration::from_secs(30)).map_err(io::Error::other)?;
            self.opened = true;
        }
        self.taken += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn logs_are_read_to_their_end_before_a_reader_that_pauses_takes_any() {
    // More than the system buffers between two sockets.
    const LENGTH: usize = 48 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let admin = listener.local_addr().unwrap().to_string();
    let (sent, gate) = sync_channel(1);
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n").unwrap();
        // A client that disconnects early has failed, and reports that itself.
        if stream.write_all(&vec![b'\n'; LENGTH]).is_ok() {
            sent.send(()).ok();
        }
    });
    let rouse = Rouse::try_parse_from(["rouse", "logs", "hello", "--admin", &admin]).unwrap();
    let (mut out, mut err) = (Paused { gate, opened: false, taken: 0 }, Vec::new());
    let mut streams = Streams { stdin: &mut io::empty(), out: &mut out, err: &mut err };
    rouse_cli::run(&rouse, &mut streams).unwrap();
    assert_eq!(out.taken, LENGTH);
    server.join().unwrap();
}

#[tokio::test]
async fn an_app_may_be_called_as_status_calls_it() {
    let (scene, server) = scene().await;
    scene.apps.keep_log(Some(log_of_one_line()));
    let said = rouse(server.address, &["restart", "local/hello"]).await.unwrap();
    assert!(said.ends_with("hello: 2 of 2 pods replaced\n"), "{said}");
    rouse(server.address, &["scale", "local/hello", "3"]).await.unwrap();
    assert_eq!(rouse(server.address, &["logs", "local/hello"]).await.unwrap(), "hello-1 | oh\n");
    assert_eq!(scene.apps.orders(), ["restart hello", "scale hello Some(3)"]);
}

#[tokio::test]
async fn an_unknown_app_is_bad_usage_and_the_known_ones_are_named() {
    let (scene, server) = scene().await;
    for words in [&["restart", "nope"][..], &["scale", "nope", "1"], &["logs", "nope"], &["logs", "a/../b c"]]
    {
        let error = rouse(server.address, words).await.unwrap_err();
        assert!(matches!(error, CommandError::Input(_)), "{words:?}: {error:?}");
        assert!(error.to_string().contains("hello") && error.to_string().contains("slow"), "{error}");
    }
    assert!(scene.apps.orders().is_empty());
}

#[tokio::test]
async fn without_a_listener_the_next_step_is_said() {
    // An address that was free a moment ago.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for words in [&["status"][..], &["restart", "a"], &["scale", "a", "1"], &["logs", "a", "-f"]] {
        let error = rouse(closed, words).await.unwrap_err();
        assert!(matches!(error, CommandError::Failed(_)), "{words:?}: {error:?}");
        let said = error.to_string();
        assert!(said.contains("nothing listens on") && said.contains("--admin"), "{said}");
    }
}
