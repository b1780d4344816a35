//! A control plane for one trial, which can stop, slow or restore its API server without affecting other trials.
//!
//! It runs no pods. Pods are processes on this machine, and the trial writes their slices.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use rouse_e2e::config::App as PodOf;
use rouse_e2e::pod::Pod;
use rouse_e2e::wait::{LONG_PATIENCE, patiently};
use serde_json::{Value, json};

use crate::cluster;
use crate::node::Node;
use crate::test_namespace::{TestNamespace, programs};

/// Whether the programs of a control plane are built. Without them such a trial cannot run.
pub(crate) fn is_built() -> bool {
    static BUILT: OnceLock<bool> = OnceLock::new();
    *BUILT.get_or_init(|| {
        let look = r#"source "$0/lib.bash"
            for program in etcd kube-apiserver kube-controller-manager kube-scheduler kubectl; do
                [ -x "$bin/$program" ] || exit 1
            done"#;
        let ran = Command::new("bash").arg("-c").arg(look).arg(scripts()).status();
        ran.is_ok_and(|status| status.success())
    })
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster")
}

/// A control plane. It is taken down when this is dropped, or when this process ends in any way.
pub(crate) struct OwnCluster {
    run: PathBuf,
    /// A process that takes the control plane down when its standard input is closed.
    undertaker: Child,
    alive: Option<ChildStdin>,
}

impl OwnCluster {
    /// A new one, with what every trial needs.
    pub(crate) async fn up() -> Self {
        let run = tempfile::Builder::new().prefix("rouse-cp-").tempdir().expect("a folder").keep();
        let mut undertaker = Command::new("setsid")
            .args(["bash", "-c", r#"cat; "$0/down"; rm -rf "$ROUSE_CLUSTER""#])
            .arg(scripts())
            .env("ROUSE_CLUSTER", &run)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("bash");
        let alive = undertaker.stdin.take();
        let cluster = Self { run, undertaker, alive };
        let mut up = tokio::process::Command::new(scripts().join("up"));
        up.arg("cp").env("ROUSE_CLUSTER", &cluster.run);
        up.env("ROUSE_CLUSTER_OWNER", std::process::id().to_string()).kill_on_drop(true);
        let ran = tokio::time::timeout(LONG_PATIENCE, up.output()).await;
        let ran = ran.expect("a control plane within minutes").expect("the script");
        assert!(ran.status.success(), "no control plane: {}", String::from_utf8_lossy(&ran.stderr));
        cluster::equip(&cluster::client_by(&cluster.run.join("kubeconfig")).await).await;
        cluster
    }

    /// A namespace in it.
    pub(crate) async fn space(&self) -> TestNamespace {
        TestNamespace::create_in(&self.run.join("kubeconfig")).await
    }
}

impl Drop for OwnCluster {
    fn drop(&mut self) {
        drop(self.alive.take());
        if let Err(error) = self.undertaker.wait() {
            eprintln!("cannot take down {}: {error}", self.run.display());
        }
    }
}

/// The programs behind a trial's namespace.
pub(crate) fn node(space: &TestNamespace) -> Node {
    Node::at(space.kubeconfig().parent().expect("the run folder"))
}

/// Starts the API server again and waits until it is ready. An API server whose port is taken, for example by a client's
/// connection, never becomes ready: it is started once more.
pub(crate) async fn api_server_returns(space: &TestNamespace) {
    start(space, "kube-apiserver").await;
    if tokio::time::timeout(std::time::Duration::from_mins(1), api_server_serves(space)).await.is_ok() {
        return;
    }
    eprintln!("the API server is not ready after 60 s: starting it once more");
    start(space, "kube-apiserver").await;
    api_server_serves(space).await;
}

/// Restarts a program that has ended.
pub(crate) async fn start(space: &TestNamespace, program: &str) {
    let ran = node(space).script("restart", &[program]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// Waits until the API server is ready.
pub(crate) async fn api_server_serves(space: &TestNamespace) {
    patiently("the API server to be ready", async || {
        let ready = http::Request::get("/readyz").body(Vec::new()).unwrap();
        // A request that arrives while it starts may never be answered.
        let asked =
            tokio::time::timeout(std::time::Duration::from_secs(10), space.client().request_text(ready));
        asked.await.ok()?.ok().filter(|said| said == "ok").map(drop)
    })
    .await;
}

/// Sends a request to etcd itself.
pub(crate) async fn etcd(space: &TestNamespace, path: &str, question: &Value) -> Value {
    let mut curl = tokio::process::Command::new("curl");
    curl.args(["-sS", "--fail-with-body", "--unix-socket"]).arg(node(space).folder().join("etcd.sock"));
    curl.arg(format!("http://localhost/v3/{path}")).args(["-d", &question.to_string()]);
    let said = rouse_e2e::command::run(curl).await.ok();
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error} in {said}"))
}

/// The current revision of etcd.
pub(crate) async fn revision(space: &TestNamespace) -> u64 {
    let status = etcd(space, "maintenance/status", &json!({})).await;
    status["header"]["revision"].as_str().and_then(|text| text.parse().ok()).expect("a revision")
}

/// Compacts etcd up to the current revision.
pub(crate) async fn compact(space: &TestNamespace) {
    let revision = revision(space).await;
    etcd(space, "kv/compaction", &json!({ "revision": revision.to_string(), "physical": true })).await;
}

/// The data folder of etcd, and the folder for its copy.
fn data(space: &TestNamespace) -> (PathBuf, PathBuf) {
    let state = node(space).folder().join("state");
    (state.join("etcd"), state.join("etcd.backup"))
}

/// Copies the data of etcd, which is stopped meanwhile.
pub(crate) async fn back_up(space: &TestNamespace) {
    let (data, backup) = data(space);
    node(space).end("etcd", rustix::process::Signal::KILL).await;
    copy(&data, &backup);
    start(space, "etcd").await;
    api_server_serves(space).await;
}

/// Puts the copy back. Neither etcd nor the API server may run.
pub(crate) fn restore(space: &TestNamespace) {
    let (data, backup) = data(space);
    fs::remove_dir_all(&data).expect("etcd's data");
    copy(&backup, &data);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

/// A non-loopback address of this machine, since `EndpointSlice`s do not allow loopback addresses.
fn own_address() -> IpAddr {
    let trie = fs::read_to_string("/proc/net/fib_trie").expect("the kernel's routes");
    let lines: Vec<&str> = trie.lines().map(str::trim).collect();
    let local = lines.windows(2).filter(|pair| pair[1].starts_with("/32 host LOCAL"));
    let all = local.filter_map(|pair| pair[0].strip_prefix("|-- ")?.parse::<IpAddr>().ok());
    let mut all: Vec<IpAddr> = all.filter(|address| !address.is_loopback()).collect();
    // The address of an e2e/cluster node is the last choice: its link may be removed with its cluster.
    let node = IpAddr::from([10, 99, 0, 254]);
    all.sort_by_key(|address| (*address == node, *address));
    *all.first().expect("an address of this machine besides loopback")
}

/// A pod: a process on this machine.
pub(crate) struct HostPod {
    pub(crate) name: String,
    pub(crate) process: Pod,
}

impl HostPod {
    /// Starts one.
    pub(crate) async fn start(name: &str) -> Self {
        let app = PodOf::http().env("POD_NAME", name);
        Self { name: name.to_owned(), process: Pod::start_at(own_address(), &programs(), &app).await }
    }

    /// A slice of `service` with only this pod. A pod that is not ready is terminating and still serving.
    pub(crate) fn slice(&self, space: &TestNamespace, service: &str, ready: bool) -> Value {
        let address = self.process.target.address;
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{service}-{}", self.name),
                "labels": {
                    "kubernetes.io/service-name": service,
                    "endpointslice.kubernetes.io/managed-by": "rouse-e2e",
                },
            },
            "addressType": "IPv4",
            "ports": [{ "name": "http", "port": address.port(), "protocol": "TCP" }],
            "endpoints": [{
                "addresses": [address.ip()],
                "conditions": { "ready": ready, "serving": true, "terminating": !ready },
                "targetRef": {
                    "kind": "Pod", "name": self.name, "namespace": space.name(), "uid": format!("uid-{}", self.name),
                },
            }],
        })
    }
}
