//! `rouse gateway` while it cannot see the cluster: what clients, probes and the log are told.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_mins(1);
const FORBIDDEN: &str = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"not for you","reason":"Forbidden","code":403}"#;
const NOTHING: &str = r#"{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}"#;

/// An API server without objects, which does not let routes be seen until `allowed`.
fn api(allowed: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let allowed = Arc::clone(&allowed);
            thread::spawn(move || answer(stream, &allowed));
        }
    });
    address
}

fn answer(mut stream: TcpStream, allowed: &AtomicBool) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let asked = lines.next().unwrap_or_default();
    while lines.next().is_some_and(|line| !line.is_empty()) {}
    let (status, body) = match asked {
        asked if asked.contains("watch=true") => {
            write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").ok();
            // Nothing happens, until the gateway leaves.
            return drop(stream.read(&mut [0]));
        }
        asked if asked.contains("/interceptorroutes") && !allowed.load(Ordering::SeqCst) => {
            ("403 Forbidden", FORBIDDEN)
        }
        _ => ("200 OK", NOTHING),
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n");
    write!(stream, "{head}Connection: close\r\n\r\n{body}").ok();
}

/// A running gateway. Dropping it ends it.
struct Gateway {
    process: Child,
    lines: Receiver<String>,
}

impl Gateway {
    fn start(api: SocketAddr) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
             clusters: [{{name: c, cluster: {{server: 'http://{api}'}}}}]\n\
             users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}]\n"
        );
        std::fs::write(&kubeconfig, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rouse"));
        command.args([
            "gateway",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--shutdown-delay",
            "0s",
        ]);
        command.arg("--kubeconfig").arg(&kubeconfig).env_clear().stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let stderr = process.stderr.take().unwrap();
        let (sender, lines) = sync_channel(1_000);
        thread::spawn(move || {
            // It has read the file by then.
            let _folder = folder;
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { process, lines }
    }

    /// What follows `mark` in the next line that has it.
    fn line(&self, mark: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no line with {mark:?}"));
            if let Some((_, rest)) = line.split_once(mark) {
                return rest.to_owned();
            }
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The whole answer to one request.
fn get(address: &str, host: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("no answer: {error}"));
    answer.to_lowercase()
}

#[test]
fn a_gateway_that_may_not_see_its_routes_answers_starting_and_says_what_it_waits_for() {
    let allowed = Arc::<AtomicBool>::default();
    let gateway = Gateway::start(api(Arc::clone(&allowed)));
    let address = gateway.line("listening on http://");
    let admin = gateway.line("admin on http://");
    let answer = get(&address, "cart.test", "/");
    assert!(answer.starts_with("http/1.1 503 "), "{answer}");
    assert!(
        answer.contains("\r\nx-rouse-error: starting\r\n") && answer.contains("\r\nretry-after: 1\r\n"),
        "{answer}"
    );
    assert!(get(&admin, &admin, "/readyz").starts_with("http/1.1 503 "));
    // Said, and said again.
    for _ in 0..2 {
        let missing = gateway.line("waiting for ");
        assert!(missing.starts_with("InterceptorRoute (interceptorroutes.http.keda.sh): "), "{missing}");
        assert!(missing.contains("not for you"), "{missing}");
    }
    allowed.store(true, Ordering::SeqCst);
    assert_eq!(gateway.line("ready: "), "0 routes");
    let answer = get(&address, "cart.test", "/");
    assert!(answer.contains("\r\nx-rouse-error: no_route\r\n"), "{answer}");
    assert!(get(&admin, &admin, "/readyz").starts_with("http/1.1 200 "));
}
