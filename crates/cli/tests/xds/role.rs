//! The running `rouse xds`, with the scripted API server: when it answers, what a real Envoy gets, and how it stops.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use http::Method;
use rouse_testkit::api_server::ApiServer;
use rouse_testkit::envoy::{self, Envoy, EnvoyHost};
use serde_json::{Value, json};

use crate::bootstrap;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_mins(1);
const SLICES: &str = "discovery.k8s.io/endpointslices";
const ROUTES: &str = "http.keda.sh/interceptorroutes";
/// The beginning of an HTTP/2 connection, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Serves on a thread of its own until the test process ends.
fn serve(server: ApiServer) -> SocketAddr {
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

/// A running role. Dropping it ends it.
struct Xds {
    process: Child,
    lines: Receiver<String>,
}

impl Xds {
    fn start(api: &ApiServer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{{name: c, cluster: {{server: 'http://{}'}}}}]\n\
             users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}]\n",
            serve(api.clone())
        );
        std::fs::write(&kubeconfig, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rouse"));
        command.args(["xds", "--xds-listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
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

    /// Tells it to stop, and returns its exit code.
    fn stop(mut self) -> Option<i32> {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.process.wait().unwrap().code()
    }
}

impl Drop for Xds {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// The status of the admin API at `path`.
fn status(admin: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(admin).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().to_owned()
}

/// Whether a server of HTTP/2 answers there, instead of closing the connection.
fn answers(address: &str) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A connection that is closed already may refuse the bytes.
    if stream.write_all(PREFACE).is_err() {
        return false;
    }
    matches!(stream.read(&mut [0; 9]), Ok(9))
}

/// Service `cart` at zero with a route, and a slice of gateways.
fn cluster(gateway: SocketAddr) -> ApiServer {
    let api = ApiServer::default();
    api.put(
        "services",
        json!({"metadata": {"name": "cart", "namespace": "shop"},
               "spec": {"clusterIP": "10.96.0.1", "selector": {"app": "cart"}, "ports": [{"name": "http", "port": 80}]}}),
    );
    api.put(
        ROUTES,
        json!({"metadata": {"name": "cart", "namespace": "shop", "generation": 1},
               "spec": {"target": {"service": "cart", "port": 80}, "rules": [{"hosts": ["cart.example.com"]}],
                        "scalingMetric": {"concurrency": {"targetValue": 10}}}}),
    );
    api.put(SLICES, gateways(gateway));
    api
}

fn gateways(gateway: SocketAddr) -> Value {
    json!({"metadata": {"name": "gateways", "namespace": "rouse-system", "labels": {"kubernetes.io/service-name": "rouse-gateway"}},
           "addressType": "IPv4", "ports": [{"name": "http", "port": gateway.port()}],
           "endpoints": [{"addresses": [gateway.ip().to_string()], "conditions": {"ready": true}}]})
}

/// Until routes, Services, slices and gateways are known, no Envoy gets an answer. A signal ends the role at once.
pub(crate) fn door() {
    let api = cluster("127.0.0.1:1".parse().unwrap());
    api.refuse(Method::GET, "/interceptorroutes", 403, "not for you", None);
    let xds = Xds::start(&api);
    let address = xds.line("Envoys on ");
    let admin = xds.line("admin on http://");
    let missing = xds.line("waiting for ");
    assert!(missing.starts_with("InterceptorRoute") && missing.contains("Envoys get no answer"), "{missing}");
    assert_eq!(status(&admin, "/readyz"), "503");
    assert!(!answers(&address), "it would tell an Envoy to remove what is not known yet");
    api.allow_all();
    assert_eq!(xds.line("ready: "), "1 routes");
    assert_eq!(status(&admin, "/readyz"), "200");
    assert!(answers(&address));
    let writes = api.requests(|request| request.method != Method::GET);
    assert!(writes.is_empty(), "{writes:?}");
    assert_eq!(xds.stop(), Some(0));
}

/// A server that answers each request with its name.
fn gateway() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut request = [0; 4096];
                while stream.read(&mut request).is_ok_and(|read| read > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ngateway";
                    if stream.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A real Envoy with the printed bootstrap sends requests of a service at zero to the gateways, follows them, and keeps what it has
/// when the role stops.
pub(crate) fn envoy() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let first = gateway();
        let api = cluster(first);
        let xds = Xds::start(&api);
        let address = xds.line("Envoys on ");
        xds.line("ready: ");
        let text =
            bootstrap(&format!("--server {address} --listen 127.0.0.1:0 --envoy-admin 127.0.0.1:0")).out;
        let envoy = Envoy::start_with(&envoy::binary().unwrap(), "envoy.yaml", &text).await;
        let host = |address| EnvoyHost { address, health: "HEALTHY".to_owned() };
        envoy.wait_for_hosts("shop/cart:http", &[host(first)]).await;
        let listener = envoy.listener("rouse_static").await;
        let answer = envoy::get(listener, "cart.example.com", "/", &[]).await.unwrap();
        assert_eq!(answer.into_body(), "gateway");
        let second = gateway();
        api.put(SLICES, gateways(second));
        envoy.wait_for_hosts("shop/cart:http", &[host(second)]).await;
        assert_eq!(xds.stop(), Some(0));
        let answer = envoy::get(listener, "cart.example.com", "/", &[]).await.unwrap();
        assert_eq!(answer.into_body(), "gateway", "without a control plane, it keeps what it has");
        assert_eq!(envoy.hosts("shop/cart:http").await.unwrap(), [host(second)]);
    });
}
