//! What trials of push share: a gateway that takes registrations, pods' tokens, and a client that registers pods.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::{Method, header};
use rouse_e2e::admin::Endpoint;
use rouse_e2e::body;
use rouse_e2e::client::session::{FullResponse, Http};
use rouse_e2e::gateway::{Gateway, Launch};
use rouse_e2e::wait::{patiently, within};
use rouse_net::tls::{ClientSettings, ClientTls, Pem, Roots, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::app::App;
use crate::authority::Authority;
use crate::identity;
use crate::test_namespace::{POD, Pod, TestNamespace, programs};

pub(crate) const AUDIENCE: &str = "rouse-register";
pub(crate) const PATH: &str = "/v1/registrations";
/// The name in the certificate of the registration listener.
const NAME: &str = "rouse-register.rouse-system.svc";
/// The run of a sidecar that started at some time.
pub(crate) const BOOT: &str = "1700000000000-00000000000000aa";

/// A gateway that takes registrations over TLS.
pub(crate) struct PushGateway {
    pub(crate) gateway: Gateway,
    address: SocketAddr,
    tls: ClientTls,
}

impl PushGateway {
    /// With the default settings: tokens are checked offline.
    pub(crate) async fn start(space: &TestNamespace) -> Self {
        Self::launch(space, space.launch().await).await
    }

    /// One that is started as `launch` says.
    pub(crate) async fn launch(space: &TestNamespace, launch: Launch) -> Self {
        let authority = Authority::named("registrations");
        let leaf = authority.leaf(&[NAME]);
        let folder = tempfile::tempdir_in(space.files()).expect("a folder").keep();
        leaf.write(&folder);
        let gateway = launch
            .flag("--register-listen", "127.0.0.1:0")
            .flag("--register-tls-cert", folder.join("tls.crt").display())
            .flag("--register-tls-key", folder.join("tls.key").display())
            .start(&programs())
            .await;
        let find = |line: &str| line.split_once("registrations on ")?.1.parse().ok();
        let address = gateway.output.find("the address for registrations", find).await;
        let name = ServerName::try_from(NAME).unwrap();
        let roots = Roots::Pem(vec![Pem::Bytes(authority.pem().as_bytes().into())]);
        let (tls, _) =
            ClientTls::new(ClientSettings { alpn: Vec::new(), ..ClientSettings::new(name, roots) }).unwrap();
        Self { gateway, address, tls }
    }

    /// Where it takes registrations.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a body with a token to the registration listener.
    pub(crate) async fn post(&self, token: Option<&str>, content: impl Into<bytes::Bytes>) -> FullResponse {
        let stream = TcpStream::connect(self.address).await.expect("a connection");
        let deadline = Instant::now() + Duration::from_mins(1);
        let (stream, _) = self.tls.connect(stream, deadline).await.expect("TLS");
        let mut http = Http::one_over(stream, NAME).await;
        let mut request = http.request(Method::POST, PATH).header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        http.whole(request.body(body::full(content)).unwrap()).await
    }

    /// Registers a pod, and asserts what became of it: `accepted`, `renewed` or `stale`. Returns the answer.
    pub(crate) async fn tells(&self, registration: &Registration, status: &str) -> Value {
        let answer = self.send(registration).await;
        let said = answer.json();
        assert_eq!(
            (answer.status.as_u16(), &said["status"]),
            (200, &json!(status)),
            "{}: {said}",
            registration.body,
        );
        said
    }

    /// Sends a registration.
    pub(crate) async fn send(&self, registration: &Registration) -> FullResponse {
        self.post(Some(&registration.token), registration.body.to_string()).await
    }

    /// Sends a registration until the gateway has seen what it is about: the pod, its address and its Service.
    pub(crate) async fn accepts(&self, registration: &Registration) {
        patiently("the registration to be checked", async || {
            let answer = self.send(registration).await;
            assert!([200, 503].contains(&answer.status.as_u16()), "{}: {}", registration.body, answer.text());
            (answer.status == 200).then_some(())
        })
        .await;
    }

    /// Sends the next registration of a sidecar, whatever becomes of it; it must be allowed.
    pub(crate) async fn post_next(&self, registration: &mut Registration, event: &str) {
        registration.next(event);
        let answer = self.send(registration).await;
        assert_eq!(answer.status, 200, "{}: {}", registration.body, answer.text());
    }

    /// The endpoints of a service, as the gateway knows them.
    pub(crate) async fn endpoints(&self, space: &TestNamespace, service: &str) -> Vec<Endpoint> {
        let name = format!("{}/{service}", space.name());
        let services = self.gateway.admin.services().await;
        let mut found: Vec<Endpoint> =
            services.into_iter().filter(|one| one.service == name).flat_map(|one| one.endpoints).collect();
        found.sort_by(|a, b| (a.address, &a.uid).cmp(&(b.address, &b.uid)));
        found
    }

    /// The state and the source of a pod in a service; `None` if it has no endpoint.
    pub(crate) async fn state(
        &self,
        space: &TestNamespace,
        service: &str,
        pod: &Pod,
    ) -> Option<(String, String)> {
        let endpoints = self.endpoints(space, service).await;
        let found = endpoints.into_iter().find(|endpoint| endpoint.uid == pod.uid)?;
        Some((found.state, found.source.unwrap_or_default()))
    }

    /// Waits until a pod has this state in a service.
    pub(crate) async fn until(&self, space: &TestNamespace, service: &str, pod: &Pod, state: Option<&str>) {
        let what = format!("{} to be {state:?}", pod.name);
        patiently(&what, async || {
            let now = self.state(space, service, pod).await;
            (now.as_ref().map(|(state, _)| state.as_str()) == state).then_some(())
        })
        .await;
    }

    /// How many registrations had this result, and how often their duration was measured.
    pub(crate) async fn attempts(&self, labels: &[(&str, &str)]) -> u64 {
        self.gateway.admin.metrics().await.count("pod_registration_attempts_total", labels)
    }

    /// How many durations were measured, by event and result.
    pub(crate) async fn durations(&self, labels: &[(&str, &str)]) -> u64 {
        self.gateway.admin.metrics().await.count("pod_registration_duration_seconds_count", labels)
    }

    pub(crate) async fn stop(self) {
        self.gateway.stop().await;
    }
}

/// A token of the account `default` for this pod and the audience of registrations, as the kubelet gives it to a sidecar.
pub(crate) async fn token(space: &TestNamespace, pod: &Pod) -> String {
    token_for(space, Some(pod), AUDIENCE).await
}

/// The same for an audience, or bound to no pod.
pub(crate) async fn token_for(space: &TestNamespace, pod: Option<&Pod>, audience: &str) -> String {
    let mut spec = json!({ "audiences": [audience], "expirationSeconds": 3600 });
    if let Some(Pod { name, uid, .. }) = pod {
        spec["boundObjectRef"] = json!({ "kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid });
    }
    identity::token_of(space, "default", spec).await
}

/// A registration of a pod, with its credential.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    token: String,
    pub(crate) body: Value,
}

impl Registration {
    /// The first of a pod with the usual ports.
    pub(crate) async fn of(space: &TestNamespace, service: &str, pod: &Pod) -> Self {
        Self { token: token(space, pod).await, body: content(space, service, pod) }
    }

    /// The next one of the same sidecar, with another event.
    pub(crate) fn next(&mut self, event: &str) -> &Self {
        self.body["sequence"] = json!(self.body["sequence"].as_u64().unwrap() + 1);
        self.body["event"] = json!(event);
        self
    }
}

/// The body of a registration: `ready`, sequence 0.
pub(crate) fn content(space: &TestNamespace, service: &str, pod: &Pod) -> Value {
    json!({
        "namespace": space.name(),
        "service": service,
        "pod": pod.name,
        "uid": pod.uid,
        "boot": BOOT,
        "sequence": 0,
        "ips": [pod.ip],
        "ports": { "http": 8080 },
        "event": "ready",
    })
}

/// An app whose slices the trial writes: its Service has no selector, and names its pods by annotation.
pub(crate) fn without_slices(app: App) -> App {
    let annotation = json!({ "rouse.dev/selector": format!("app={}", app.name()) });
    app.service_with(json!({ "metadata": { "annotations": annotation }, "spec": { "selector": null } }))
}

/// A pod of an app without a Deployment, which would replace it when its labels change.
pub(crate) async fn lone_pod(space: &TestNamespace, app: &App, name: &str) -> Pod {
    let mut pod = app.deployment()["spec"]["template"].take();
    crate::app::merge(&mut pod, &json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name } }));
    space.apply(pod).await;
    is_ready(space, name).await
}

/// Waits until the kubelet says that a pod is ready, whether or not a slice lists it.
pub(crate) async fn is_ready(space: &TestNamespace, name: &str) -> Pod {
    let ready = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().any(|is| is["type"] == "ContainersReady" && is["status"] == "True")
    };
    space.until(POD, name, "to be ready", ready).await;
    space.addressed_pod(name).await
}

/// A slice with these pods of an app, each ready or not.
pub(crate) fn slice(service: &str, pods: &[(&Pod, bool)]) -> Value {
    let endpoint = |(pod, ready): &(&Pod, bool)| {
        json!({
            "addresses": [pod.ip],
            "conditions": { "ready": ready, "serving": ready, "terminating": false },
            "targetRef": { "kind": "Pod", "name": pod.name, "uid": pod.uid },
        })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": service,
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "rouse-e2e",
            },
        },
        "addressType": if pods.iter().all(|(pod, _)| matches!(pod.ip, IpAddr::V4(_))) { "IPv4" } else { "IPv6" },
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// Whether a connection without TLS gets any answer to a registration.
pub(crate) async fn plaintext_answer(gateway: &PushGateway, registration: &Registration) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let content = registration.body.to_string();
    let mut stream = TcpStream::connect(gateway.address()).await.expect("a connection");
    let request = format!(
        "POST {PATH} HTTP/1.1\r\nHost: {NAME}\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{content}",
        registration.token,
        content.len(),
    );
    // The gateway may close the connection at the first bytes.
    stream.write_all(request.as_bytes()).await.ok();
    let mut answer = Vec::new();
    within("the end of the connection", stream.read_to_end(&mut answer)).await.ok();
    String::from_utf8_lossy(&answer).into_owned()
}
