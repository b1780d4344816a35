//! `rouse gateway` while it cannot reach the cluster: its responses to clients and probes, and its log.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use http::Method;
use rouse_testkit::api_server::ApiServer;

/// Far longer than anything here takes.
pub(super) const PATIENCE: Duration = Duration::from_mins(1);

/// Serves on a thread of its own until the test process ends.
pub(super) fn serve(server: ApiServer) -> SocketAddr {
    let (sender, address) = sync_channel(1);
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (address, mut tasks) = server.serve().await;
            sender.send(address).unwrap();
            tasks.join_next().await;
        });
    });
    address.recv_timeout(PATIENCE).unwrap()
}

/// The token of the gateway for the API server.
pub(super) const TOKEN: &str = "t0ken-of-the-gateway";

/// A running gateway. Dropping it ends it.
pub(super) struct Gateway {
    pub(super) process: Child,
    pub(super) lines: Receiver<String>,
}

impl Gateway {
    fn start(api: SocketAddr) -> Self {
        Self::start_with(api, &[])
    }

    /// With these arguments, and a token in its kubeconfig.
    pub(super) fn start_with(api: SocketAddr, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
             clusters: [{{name: c, cluster: {{server: 'http://{api}'}}}}]\n\
             users: [{{name: u, user: {{token: {TOKEN}}}}}]\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}]\n"
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
        command.args(arguments);
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

    /// Tells it to stop, and waits until it has.
    pub(super) fn stop(&mut self) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.process.wait().unwrap();
    }

    /// What follows `mark` in the next line that has it.
    pub(super) fn line(&self, mark: &str) -> String {
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
pub(super) fn get(address: &str, host: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("no answer: {error}"));
    answer.to_lowercase()
}

#[test]
fn a_gateway_that_may_not_see_its_routes_answers_starting_and_says_what_it_waits_for() {
    let server = ApiServer::default();
    server.refuse(Method::GET, "/interceptorroutes", 403, "not for you", None);
    let gateway = Gateway::start(serve(server.clone()));
    let address = gateway.line("listening on http://");
    let admin = gateway.line("admin on http://");
    let answer = get(&address, "cart.test", "/");
    assert!(answer.starts_with("http/1.1 503 "), "{answer}");
    assert!(
        answer.contains("\r\nx-rouse-error: starting\r\n") && answer.contains("\r\nretry-after: 1\r\n"),
        "{answer}"
    );
    assert!(get(&admin, &admin, "/readyz").starts_with("http/1.1 503 "));
    // Logged, and logged again.
    for _ in 0..2 {
        let missing = gateway.line("waiting for ");
        assert!(missing.starts_with("InterceptorRoute (interceptorroutes.http.keda.sh): "), "{missing}");
        assert!(missing.contains("not for you"), "{missing}");
    }
    server.allow_all();
    assert_eq!(gateway.line("ready: "), "0 routes");
    let answer = get(&address, "cart.test", "/");
    assert!(answer.contains("\r\nx-rouse-error: no_route\r\n"), "{answer}");
    assert!(get(&admin, &admin, "/readyz").starts_with("http/1.1 200 "));
}
