//! State of the world, which is served for endpoints alone.

use rouse_grpc::xds::XdsLimits;
use rouse_grpc::xds::resource_type::ResourceType;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::{Code, Streaming};

use crate::harness::{Connection, Eds, GENEROUS, Lds, Rds, Scene, end_of, queue};
use crate::proto::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse, Status};

/// A client with one state-of-the-world stream.
struct SotwEnvoy {
    outgoing: mpsc::Sender<DiscoveryRequest>,
    incoming: Streaming<DiscoveryResponse>,
    _connection: Connection,
    /// What the client has accepted or rejected last.
    nonce: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Call {
    Aggregated,
    Endpoints,
}

impl SotwEnvoy {
    async fn open(scene: &Scene, call: Call) -> Self {
        let (connection, (outgoing, request)) = (scene.connect().await, queue());
        let response = match call {
            Call::Aggregated => {
                let mut client = connection.aggregated();
                timeout(GENEROUS, client.stream_aggregated_resources(request)).await.unwrap()
            }
            Call::Endpoints => {
                let mut client = connection.endpoints();
                timeout(GENEROUS, client.stream_endpoints(request)).await.unwrap()
            }
        };
        let incoming = response.unwrap().into_inner();
        Self { outgoing, incoming, _connection: connection, nonce: String::new() }
    }

    /// Asks for these names, as an answer to the last response.
    async fn ask(&mut self, names: &[&str], error_detail: Option<Status>) {
        self.ask_for(Eds.url(), names, error_detail).await;
    }

    async fn ask_for(&mut self, url: &str, names: &[&str], error_detail: Option<Status>) {
        let request = DiscoveryRequest {
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            type_url: url.to_owned(),
            response_nonce: self.nonce.clone(),
            error_detail,
            ..DiscoveryRequest::default()
        };
        self.outgoing.send(request).await.unwrap();
    }

    /// Waits for the next response, and checks what it has.
    async fn expect(&mut self, expected: &[&str]) {
        let response = timeout(GENEROUS, self.incoming.message()).await.unwrap().unwrap().unwrap();
        assert_eq!(response.type_url, Eds.url());
        assert!(!response.version_info.is_empty());
        let contents: Vec<_> =
            response.resources.iter().map(|resource| str::from_utf8(&resource.value).unwrap()).collect();
        assert_eq!(contents, expected);
        self.nonce = response.nonce;
    }
}

#[tokio::test]
async fn endpoints_are_served_by_both_calls_as_they_change() {
    for call in [Call::Aggregated, Call::Endpoints] {
        let scene = Scene::new();
        scene.set(Eds, "a", "a1");
        scene.set(Eds, "b", "b1");
        let mut envoy = SotwEnvoy::open(&scene, call).await;
        envoy.ask(&["a", "c"], None).await;
        envoy.expect(&["a1"]).await;
        // While the answer is awaited, changes wait.
        scene.set(Eds, "a", "a2");
        scene.set(Eds, "a", "a3");
        envoy.ask(&["a", "c"], None).await;
        envoy.expect(&["a3"]).await;
        // A name that is added is sent, and one that is left out is not sent any more.
        envoy.ask(&["b", "c"], None).await;
        envoy.expect(&["b1"]).await;
        envoy.ask(&["b", "c"], None).await;
        scene.set(Eds, "a", "a4");
        // A removal cannot be said: the client keeps what it has.
        scene.remove(Eds, "b");
        scene.set(Eds, "c", "c1");
        envoy.expect(&["c1"]).await;
        envoy.ask(&["b", "c"], None).await;
        scene.set(Eds, "b", "b1");
        envoy.expect(&["b1"]).await;
        assert_eq!(scene.metric("rouse_xds_acks_total{type=\"eds\"}"), 4);
    }
}

#[tokio::test]
async fn a_rejected_response_is_not_sent_again_and_a_stale_answer_is_ignored() {
    let scene = Scene::new();
    scene.set(Eds, "a", "bad");
    let mut envoy = SotwEnvoy::open(&scene, Call::Endpoints).await;
    envoy.ask(&["a"], None).await;
    envoy.expect(&["bad"]).await;
    envoy.ask(&["a"], Some(Status { code: 13, message: "bad".into() })).await;
    scene.set(Eds, "a", "good");
    envoy.expect(&["good"]).await;
    scene.set(Eds, "a", "better");
    let nonce = std::mem::take(&mut envoy.nonce);
    envoy.ask(&["a"], None).await;
    envoy.nonce = nonce;
    envoy.ask(&["a"], None).await;
    envoy.expect(&["better"]).await;
    assert_eq!(scene.metric("rouse_xds_nacks_total{type=\"eds\"}"), 1);
    assert_eq!(scene.metric("rouse_xds_responses_total{type=\"eds\"}"), 3);
}

#[tokio::test]
async fn clients_are_known_by_what_they_accepted() {
    let scene = Scene::new();
    scene.set(Eds, "a", "1");
    let mut envoy = SotwEnvoy::open(&scene, Call::Endpoints).await;
    let mut changes = scene.server.watch_clients();
    envoy.ask(&["a"], None).await;
    envoy.expect(&["1"]).await;
    let version = scene.cache.version(Eds, "a");
    assert!(!scene.server.acknowledged_endpoints("a", version));
    changes.mark_unchanged();
    envoy.ask(&["a"], None).await;
    timeout(GENEROUS, changes.changed()).await.unwrap().unwrap();
    assert!(scene.server.acknowledged_endpoints("a", version));
    assert_eq!(scene.server.clients()[0].endpoints, ["a".into()]);
}

#[tokio::test]
async fn other_types_end_the_stream_and_the_status_says_what_to_use() {
    for kind in [ResourceType::Cluster, Lds, Rds] {
        let scene = Scene::new();
        let mut envoy = SotwEnvoy::open(&scene, Call::Aggregated).await;
        envoy.ask_for(kind.url(), &[], None).await;
        let (code, message) = end_of(&mut envoy.incoming).await;
        assert_eq!(code, Code::Unimplemented);
        assert!(message.contains(kind.url()) && message.contains("DELTA_GRPC"), "{message}");
        assert_eq!(scene.ended("not_incremental"), 1);
    }
}

#[tokio::test]
async fn the_call_of_endpoints_may_leave_the_type_out_and_has_no_other() {
    let scene = Scene::new();
    scene.set(Eds, "a", "1");
    let mut envoy = SotwEnvoy::open(&scene, Call::Endpoints).await;
    envoy.ask_for("", &["a"], None).await;
    envoy.expect(&["1"]).await;
    envoy.ask_for(Lds.url(), &["a"], None).await;
    let (code, message) = end_of(&mut envoy.incoming).await;
    assert_eq!(code, Code::InvalidArgument);
    assert!(message.contains(Lds.url()) && message.contains(Eds.url()), "{message}");
    assert_eq!(scene.ended("wrong_type"), 1);
}

#[tokio::test]
async fn the_limit_of_names_is_for_both_protocols() {
    let limits = XdsLimits { names_per_stream: 2, ..XdsLimits::default() };
    let scene = Scene::with(limits, rouse_grpc::xds::Access::Any);
    let mut envoy = SotwEnvoy::open(&scene, Call::Endpoints).await;
    envoy.ask(&["a", "b"], None).await;
    envoy.ask(&["b", "c"], None).await;
    envoy.ask(&["a", "b", "c"], None).await;
    let (code, message) = end_of(&mut envoy.incoming).await;
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("more than 2 names"), "{message}");
}
