//! The cluster, the gateway, the storm and the flood.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rouse_core::endpoint::PodUid;
use rouse_e2e::client::session::Http;
use rouse_e2e::gateway::{Gateway, Launch};
use rouse_e2e::proc::Memory;
use rouse_e2e::programs;
use rouse_e2e::target::Target;
use rouse_e2e::wait::patiently;
use rouse_net::auth::PodIdentity;
use rouse_testkit::api_server::ApiServer;
use rouse_testkit::certificates::Authority;
use rouse_testkit::token_issuer::{ISSUER, SigningKey, claims_of};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::{self, KEY, Pod, SECRET, SERVER_NAME, Work};
use crate::number;

const SERVICES: usize = 20;
/// The pods of one service that no slice may list, by default.
const CAP: usize = 1_000;
/// How many more than that the service `big` has.
const OVER: usize = 5;
const PROCESSES: usize = 4;
const ATTACKERS: usize = 40;
/// The gateway must not need more, in MiB.
const MEMORY: u64 = 512;
const APP: [u8; 4] = [10, 127, 0, 1];

/// One pod of the cluster.
struct StormPod {
    service: String,
    name: String,
    ip: IpAddr,
}

impl StormPod {
    fn object(&self) -> Value {
        json!({"metadata": {"name": self.name, "namespace": "shop", "uid": self.name, "labels": {"app": self.service}},
               "spec": {"containers": [{"ports": [{"name": "web", "containerPort": 8080}]}]},
               "status": {"phase": "Running", "podIPs": [{"ip": self.ip.to_string()}]}})
    }

    fn body(&self) -> String {
        let body = json!({"namespace": "shop", "service": self.service, "pod": self.name, "uid": self.name,
            "boot": "1700000000000-000000000000feed", "sequence": 1, "ips": [self.ip], "ports": {"http": 8080}, "event": "ready"});
        body.to_string()
    }

    fn token(&self, key: &SigningKey) -> String {
        let identity = PodIdentity {
            namespace: "shop".into(),
            pod: self.name.clone(),
            uid: PodUid::new(&self.name),
            service_account: "default".into(),
        };
        format!("Bearer {}", key.sign(&claims_of(&identity, jsonwebtoken::get_current_timestamp())))
    }
}

fn pods(count: usize) -> Vec<StormPod> {
    let big = if count >= 10_000 { CAP + OVER } else { 0 };
    let pod = |n: usize| {
        let service = if n < count { format!("s{}", n % SERVICES) } else { "big".to_owned() };
        let ip = IpAddr::from((0x0a40_0000 + u32::try_from(n).unwrap() + 1).to_be_bytes());
        StormPod { name: format!("{service}-{n}"), service, ip }
    };
    (0..count + big).map(pod).collect()
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "shop"},
           "spec": {"clusterIP": "10.96.0.1", "selector": {"app": name}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}})
}

fn cluster(pods: &[StormPod], key: &SigningKey) -> ApiServer {
    let api = ApiServer::default();
    for name in (0..SERVICES).map(|n| format!("s{n}")).chain(["big".to_owned(), "app".to_owned()]) {
        api.put("services", service(&name));
    }
    for pod in pods {
        api.put("pods", pod.object());
    }
    let app = StormPod { service: "app".into(), name: "app-0".into(), ip: APP.into() };
    api.put("pods", app.object());
    let listed = json!({"addresses": [app.ip], "conditions": {"ready": true},
        "targetRef": {"kind": "Pod", "name": app.name, "namespace": "shop", "uid": app.name}});
    api.put(
        "discovery.k8s.io/endpointslices",
        json!({"metadata": {"name": "app-a", "namespace": "shop", "labels": {"kubernetes.io/service-name": "app"}},
               "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": [listed]}),
    );
    api.put(
        "http.keda.sh/interceptorroutes",
        json!({"metadata": {"name": "app", "namespace": "shop", "generation": 1},
               "spec": {"target": {"service": "app", "port": 80}, "rules": [{"hosts": ["app.test"]}],
                        "scalingMetric": {"concurrency": {"targetValue": 10}}}}),
    );
    api.object_at("/openid/v1/jwks", json!({"keys": [key.jwk()]}));
    api
}

/// An app that answers every request.
async fn app(listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        let (mut stream, _): (TcpStream, _) = listener.accept().await.unwrap();
        connections.spawn(async move {
            let mut piece = [0; 4096];
            // A request has no body here, and comes in one piece.
            while stream.read(&mut piece).await.is_ok_and(|length| length > 0) {
                if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Sends requests one after another until `over`, and returns how long each took.
async fn traffic(target: Target, over: Arc<AtomicBool>) -> Vec<Duration> {
    let (mut client, mut took) = (Http::one(&target).await, Vec::new());
    while !over.load(Ordering::Relaxed) {
        let began = Instant::now();
        assert_eq!(client.get("/").await.status, 200, "a request failed");
        took.push(began.elapsed());
    }
    took.sort_unstable();
    took
}

/// Runs `work` under traffic, and prints what it did to the latency of requests.
async fn under_traffic<T>(gateway: &Gateway, what: &str, work: impl Future<Output = T>) -> T {
    let (over, mut requests) = (Arc::<AtomicBool>::default(), JoinSet::new());
    requests.spawn(traffic(gateway.target("app.test"), Arc::clone(&over)));
    let began = Instant::now();
    let result = work.await;
    let seconds = began.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    let took = requests.join_next().await.unwrap().unwrap();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100];
    println!(
        "{what}: {seconds:.1} s; {} requests, p50 {:?}, p99 {:?}, slowest {:?}",
        took.len(),
        at(50),
        at(99),
        at(100)
    );
    result
}

async fn start(api: &ApiServer, folder: &Path, authority: &Authority) -> (Gateway, SocketAddr, JoinSet<()>) {
    let (address, serving) = api.serve().await;
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        folder.join(name)
    };
    let kubeconfig = write(
        "kubeconfig",
        &format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
             clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
             users: [{{name: u, user: {{}}}}]\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}]\n"
        ),
    );
    let leaf = authority.leaf(&[SERVER_NAME]);
    let (cert, key) = (write("cert.pem", &leaf.chain), write("key.pem", &leaf.key));
    let keys = folder.join("keys");
    std::fs::create_dir(&keys).unwrap();
    std::fs::write(keys.join(KEY), SECRET).unwrap();
    std::fs::write(keys.join(format!("{KEY}.namespaces")), "shop").unwrap();
    let launch = Launch::new(&kubeconfig)
        .flag("--register-listen", "127.0.0.1:0")
        .flag("--register-auth", "token")
        .switch("--register-auth=hmac")
        .flag("--register-issuer", ISSUER)
        .flag("--register-tls-cert", cert.display())
        .flag("--register-tls-key", key.display())
        .flag("--register-keys", keys.display());
    let gateway = launch.start(&programs!()).await;
    let lines = gateway.output.lines();
    let register = lines.iter().find_map(|line| line.split_once("registrations on ")?.1.trim().parse().ok());
    (gateway, register.expect("the address for registrations"), serving)
}

/// How many pods of each service are ready.
async fn ready(gateway: &Gateway) -> BTreeMap<String, usize> {
    let services = gateway.admin.services().await.into_iter();
    let ready = |endpoints: Vec<rouse_e2e::admin::Endpoint>| {
        endpoints.iter().filter(|endpoint| endpoint.state == "Ready").count()
    };
    services.map(|service| (service.service, ready(service.endpoints))).collect()
}

/// The work of several processes.
fn split(pods: &[Pod], gateway: SocketAddr, ca: &str, at_once: usize) -> Vec<Work> {
    let size = pods.len().div_ceil(PROCESSES).max(1);
    let piece = |pods: &[Pod]| Work { gateway, ca: ca.to_owned(), at_once, pods: pods.to_vec() };
    pods.chunks(size).map(piece).collect()
}

pub(crate) async fn run() {
    let (count, forged) = (number("ROUSE_STORM_PODS", 400), number("ROUSE_STORM_FORGED", 4_000));
    let (pods, authority, folder) = (pods(count), Authority::new(), tempfile::tempdir().unwrap());
    let rsa = jsonwebtoken::Algorithm::RS256;
    let (key, stranger) = (SigningKey::of("k1", rsa), SigningKey::new("k1"));
    let api = cluster(&pods, &key);
    let (gateway, register, _serving) = start(&api, folder.path(), &authority).await;
    let mut apps = JoinSet::new();
    apps.spawn(app(TcpListener::bind(SocketAddr::from((APP, 8080))).await.unwrap()));
    patiently("the app to answer", async || {
        let target = gateway.target("app.test");
        (Http::one(&target).await.get("/").await.status == 200).then_some(())
    })
    .await;
    // Every second pod has a token, the others have the shared key.
    let honest = |(n, pod): (usize, &StormPod)| Pod {
        from: pod.ip,
        authorization: n.is_multiple_of(2).then(|| pod.token(&key)),
        body: pod.body(),
        times: 1,
        attacks: false,
    };
    let all: Vec<Pod> = pods.iter().enumerate().map(honest).collect();
    let ca = authority.pem();
    let memory = Memory::watch(gateway.pid);
    let quiet = tokio::time::sleep_until(Instant::now() + Duration::from_secs(1));
    under_traffic(&gateway, "before", quiet).await;
    let storm = client::run(split(&all, register, &ca, 64));
    let answers = under_traffic(&gateway, &format!("{} pods register", all.len()), storm).await;
    let over = all.len().saturating_sub(count + CAP);
    let expected = [(200, all.len() - over), (429, over)].into_iter().filter(|(_, count)| *count > 0);
    assert_eq!((answers.statuses, answers.errors), (expected.collect(), vec![]));
    let known = ready(&gateway).await;
    assert_eq!(known.values().sum::<usize>(), all.len() - over + 1, "with the app: {known:?}");
    // Forged registrations of all pods, from the addresses of attackers, while some honest pods renew theirs.
    let attacker = |n: usize| {
        let victim = &pods[n % pods.len()];
        let from = IpAddr::from((0x0a70_0000 + u32::try_from(n).unwrap() + 1).to_be_bytes());
        let body =
            victim.body().replace("\"ready\"", "\"draining\"").replace("\"sequence\":1", "\"sequence\":9");
        // A token with a wrong signature costs the most to refuse; a valid key from another address is refused last.
        let authorization = n.is_multiple_of(2).then(|| victim.token(&stranger));
        Pod { from, authorization, body, times: forged / ATTACKERS, attacks: true }
    };
    let attack = split(&(0..ATTACKERS).map(attacker).collect::<Vec<_>>(), register, &ca, ATTACKERS);
    let renewals = split(&all[..count.min(1_000)], register, &ca, 64);
    let both = async { tokio::join!(client::run(attack), client::run(renewals)) };
    let (attack, renewed) = under_traffic(&gateway, &format!("{forged} forged"), both).await;
    assert!(
        attack.statuses.keys().all(|status| [0, 401, 403, 429].contains(status)),
        "{:?}",
        attack.statuses
    );
    assert_eq!(
        (attack.statuses.values().sum::<usize>(), attack.errors),
        (forged / ATTACKERS * ATTACKERS, vec![])
    );
    assert_eq!((renewed.statuses, renewed.errors), ([(200, count.min(1_000))].into(), vec![]));
    assert_eq!(ready(&gateway).await, known, "the forged registrations changed something");
    let peak = memory.peak() / 1024;
    println!("peak memory of the gateway: {peak} MiB; refused: {:?}", attack.statuses);
    assert!(peak < MEMORY, "{peak} MiB");
    gateway.stop().await;
}
