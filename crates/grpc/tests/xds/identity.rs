//! Who may connect: the names in the certificates of clients decide, never what clients say of themselves.

use std::sync::{Arc, LazyLock};

use rouse_grpc::GrpcTransport;
use rouse_grpc::xds::{Access, XdsLimits};
use rouse_net::tls::{
    Alpn, CertEntry, ClientAuth, ClientSettings, ClientTls, Identity, Roots, ServerName, ServerSettings,
    ServerTls,
};
use rouse_testkit::certificates::Authority;
use rouse_testkit::certificates::rcgen::{KeyPair, SanType};
use tokio::io::duplex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::harness::{Cds, Connection, Envoy, GENEROUS, Scene, peer};

const NAME: &str = "rouse-xds.rouse-system.svc.cluster.local";
const EDGE: &str = "spiffe://cluster.local/ns/edge/sa/envoy";
const OTHER: &str = "spiffe://cluster.local/ns/other/sa/envoy";

static AUTHORITY: LazyLock<Authority> = LazyLock::new(Authority::new);

/// A certificate with these URIs and DNS names.
fn certificate(authority: &Authority, uris: &[&str], names: &[&str]) -> Identity {
    let leaf = authority.leaf_by(names, &KeyPair::generate().unwrap(), |params| {
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
    });
    leaf.identity()
}

fn transport(client_auth: ClientAuth) -> GrpcTransport {
    let entry = CertEntry { identity: AUTHORITY.leaf(&[NAME]).identity(), names: Vec::new() };
    let settings = ServerSettings { alpn: vec![Alpn::H2], client_auth, ..ServerSettings::new(vec![entry]) };
    GrpcTransport::Tls(Arc::new(ServerTls::new(settings).unwrap().0))
}

/// A server for these names.
fn scene(allowed: &[&str]) -> Scene {
    let allowed = allowed.iter().map(|name| (*name).to_owned()).collect();
    Scene::with(XdsLimits::default(), Access::Sans(allowed))
}

/// Connects with a certificate, or without. `None`: the handshake or the connection fails.
async fn connect(scene: &Scene, client_auth: ClientAuth, identity: Option<Identity>) -> Option<Connection> {
    let (ours, theirs) = duplex(64 * 1024);
    let server = scene.server.clone();
    let transport = transport(client_auth);
    scene
        .tasks
        .lock()
        .unwrap()
        .spawn(async move { server.serve_connection(theirs, peer(), transport).await });
    let settings = ClientSettings {
        alpn: vec![Alpn::H2],
        identity,
        ..ClientSettings::new(ServerName::try_from(NAME).unwrap(), Roots::Pem(vec![AUTHORITY.ca()]))
    };
    let (client, _) = ClientTls::new(settings).unwrap();
    let (stream, _) = client.connect(ours, Instant::now() + GENEROUS).await.ok()?;
    Some(Connection::over(stream).await)
}

async fn open(scene: &Scene, identity: Option<Identity>) -> Result<Envoy, Status> {
    let required = ClientAuth::Required(AUTHORITY.ca());
    connect(scene, required, identity).await.unwrap().delta().await
}

/// Checks that a client gets nothing, also with the node id of another.
async fn check_denied(scene: &Scene, connection: Connection) {
    let status = connection.delta().await.err().unwrap();
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert_eq!(scene.server.clients(), []);
    assert_eq!(scene.metric("rouse_xds_responses_total{type=\"cds\"}"), 0);
}

#[tokio::test]
async fn a_client_is_called_by_the_allowed_name_of_its_certificate() {
    let cases: [(&[&str], &[&str], &str); 4] = [
        (&[EDGE], &[], EDGE),
        (&[OTHER, EDGE], &["x.example"], EDGE),
        (&[OTHER], &["envoy.edge.svc"], "envoy.edge.svc"),
        (&[], &["envoy.edge.svc"], "envoy.edge.svc"),
    ];
    for (uris, names, expected) in cases {
        let scene = scene(&[EDGE, "envoy.edge.svc"]);
        scene.set(Cds, "a", "1");
        let mut envoy = open(&scene, Some(certificate(&AUTHORITY, uris, names))).await.unwrap();
        envoy.subscribe(Cds, &[]).await;
        envoy.accept("cds a=1").await;
        let client = &scene.server.clients()[0];
        assert_eq!(client.identity.san.as_deref(), Some(expected));
    }
}

#[tokio::test]
async fn a_certificate_without_an_allowed_name_gets_nothing_whatever_the_node_id() {
    for (uris, names) in [
        (&[OTHER][..], &["x.example"][..]),
        (&[], &[]),
        (
            &["spiffe://cluster.local/ns/edge/sa/envoy2", "spiffe://cluster.local/ns/edge/sa/envoy/x"],
            &["ns.edge"],
        ),
    ] {
        // A node id that is the allowed name, as every test client sends one.
        let scene = scene(&[EDGE, "envoy-1"]);
        scene.set(Cds, "a", "1");
        let required = ClientAuth::Required(AUTHORITY.ca());
        let connection = connect(&scene, required, Some(certificate(&AUTHORITY, uris, names))).await.unwrap();
        check_denied(&scene, connection).await;
        assert_eq!(scene.ended("denied"), 1);
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_gets_nothing() {
    let scene = scene(&[EDGE]);
    // TLS 1.3: the client only learns after its handshake that the server has refused it.
    let required = ClientAuth::Required(AUTHORITY.ca());
    if let Some(connection) = connect(&scene, required, None).await {
        assert!(connection.delta().await.is_err());
    }
    assert_eq!(scene.server.clients(), []);
    let optional = connect(&scene, ClientAuth::Optional(AUTHORITY.ca()), None).await.unwrap();
    check_denied(&scene, optional).await;
    let none = connect(&scene, ClientAuth::None, None).await.unwrap();
    check_denied(&scene, none).await;
    check_denied(&scene, scene.connect().await).await;
}

#[tokio::test]
async fn a_certificate_of_another_authority_gets_nothing() {
    let scene = scene(&[EDGE]);
    let forged = certificate(&Authority::new(), &[EDGE], &[]);
    let required = ClientAuth::Required(AUTHORITY.ca());
    if let Some(connection) = connect(&scene, required, Some(forged)).await {
        assert!(connection.delta().await.is_err());
    }
    assert_eq!(scene.server.clients(), []);
}

#[tokio::test]
async fn streams_of_one_name_share_a_limit_and_others_have_their_own() {
    let limits = XdsLimits { streams_per_client: 1, ..XdsLimits::default() };
    let scene = Scene::with(limits, Access::Any);
    let (edge, other) = (certificate(&AUTHORITY, &[EDGE], &[]), certificate(&AUTHORITY, &[OTHER], &[]));
    let first = connect(&scene, ClientAuth::Required(AUTHORITY.ca()), Some(edge)).await.unwrap();
    let again = Connection { channel: first.channel.clone(), _task: JoinSet::new() };
    let _open = first.delta().await.unwrap();
    assert_eq!(again.delta().await.err().unwrap().code(), Code::ResourceExhausted);
    assert_eq!(scene.ended("too_many_streams_of_client"), 1);
    let mut envoy = open(&scene, Some(other)).await.unwrap();
    envoy.subscribe(Cds, &[]).await;
    envoy.accept("cds").await;
}
