//! The client sends a credential only to verified gateways, and uses replaced keys, tokens and CAs (paused time).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rouse_core::endpoint::State;
use rouse_core::merge::PushEvent;
use rouse_net::auth::PushMode;
use rouse_net::clock::TokioClock;
use rouse_net::tls::{CertEntry, ClientAuth, Identity, Pem, Roots, ServerSettings, ServerTls};
use rouse_register::client::{PushClientError, PushClientSettings, PushCredential, client};
use rouse_testkit::certificates::rcgen::{KeyPair, SanType};
use rouse_testkit::certificates::{Authority, Leaf};

use crate::harness::{NEXT_SECRET, Network, SECRET, Sidecar, default_url, now, pass, plain, seconds, token};

pub(crate) const NAME: &str = "rouse-register.rouse-system.svc";

/// The TLS of gateways, with client certificates of `client_ca` if there is one.
pub(crate) fn server_tls(authority: &Authority, client_ca: Option<&Authority>) -> Arc<ServerTls> {
    server_tls_of(authority.leaf(&[NAME]).identity(), client_ca)
}

fn server_tls_of(identity: Identity, client_ca: Option<&Authority>) -> Arc<ServerTls> {
    let mut settings = ServerSettings::new(vec![CertEntry { identity, names: Vec::new() }]);
    if let Some(ca) = client_ca {
        settings.client_auth = ClientAuth::Optional(ca.ca());
    }
    Arc::new(ServerTls::new(settings).unwrap().0)
}

/// Writes one of the tokens to a file.
pub(crate) fn token_file(folder: &Path, which: usize) -> PathBuf {
    let path = folder.join("token");
    fs::write(&path, format!("{}\n", token(which))).unwrap();
    path
}

fn with_token(folder: &Path, roots: Roots) -> PushClientSettings {
    let credential = PushCredential::Token(token_file(folder, 0));
    let tls = default_url().tls(roots, None);
    PushClientSettings { gateways: default_url(), credential, tls, ..plain() }
}

#[test]
fn a_secret_needs_tls_that_verifies_the_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let secure = with_token(folder.path(), Roots::System);
    let unverified = secure.tls.clone().map(|tls| rouse_net::tls::ClientSettings { verify: false, ..tls });
    let gateways = plain().gateways;
    let certificate = PushCredential::Certificate;
    let refused = [
        ("http", PushClientSettings { gateways: gateways.clone(), ..secure.clone() }),
        ("no tls", PushClientSettings { tls: None, ..secure.clone() }),
        ("unverified", PushClientSettings { tls: unverified.clone(), ..secure.clone() }),
        ("mtls over http", PushClientSettings { credential: certificate.clone(), ..plain() }),
        ("https without tls", PushClientSettings { gateways: default_url(), ..plain() }),
    ];
    for (name, settings) in refused {
        let error = client(settings, clock(), 7, now).unwrap_err();
        assert!(matches!(error, PushClientError::NeedsTls(_)), "{name}: {error}");
        assert!(error.to_string().contains("https://"), "{error}");
    }
    let settings = PushClientSettings { credential: certificate, ..secure };
    assert!(matches!(client(settings, clock(), 7, now), Err(PushClientError::NoCertificate)));
    client(plain(), clock(), 7, now).unwrap();
}

fn clock() -> TokioClock {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(async { TokioClock::new() })
}

#[tokio::test(start_paused = true)]
async fn a_token_goes_only_to_a_gateway_whose_certificate_is_verified_for_the_name_of_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let (trusted, other) = (Authority::new(), Authority::new());
    let cases = [
        ("good", trusted.leaf(&[NAME]), true),
        ("the long name", trusted.leaf(&[&format!("{NAME}.cluster.local")]), true),
        ("another name", trusted.leaf(&["rouse-register.evil.svc"]), false),
        ("its address", trusted.leaf(&["10.1.0.1"]), false),
        ("another authority", other.leaf(&[NAME]), false),
        ("its own authority", Leaf::self_signed(&[NAME]), false),
        ("expired", trusted.leaf_of(&[NAME], [2000, 2001]), false),
    ];
    for (name, leaf, good) in cases {
        let network = Network::new(Some(server_tls_of(leaf.identity(), None)));
        let gateway = network.start(1, PushMode::On);
        network.name(&[1]);
        let settings = with_token(folder.path(), Roots::Pem(vec![trusted.ca()]));
        let sidecar = Sidecar::with(&network, settings, now);
        sidecar.reporter.report(PushEvent::Ready);
        pass(seconds(10)).await;
        assert_eq!(gateway.state().is_some(), good, "{name}");
        assert_eq!(gateway.requests.lock().unwrap().is_empty(), !good, "{name}: nothing was sent");
        assert!(!network.dials_to(1).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_replaced_token_is_used_with_the_next_request() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let network = Network::new(Some(server_tls(&authority, None)));
    let gateway = network.start(1, PushMode::On);
    network.name(&[1]);
    let settings = with_token(folder.path(), Roots::Pem(vec![authority.ca()]));
    let sidecar = Sidecar::with(&network, settings, now);
    sidecar.report(PushEvent::Ready).await;
    token_file(folder.path(), 1);
    *network.token.lock().unwrap() = 1;
    // The gateway remembers the old token for a minute, so the new one is seen by what becomes of it.
    pass(seconds(130)).await;
    assert_eq!((gateway.state(), gateway.attempts("unauthenticated")), (Some(State::Ready), 0));
    fs::remove_file(folder.path().join("token")).unwrap();
    sidecar.reporter.report(PushEvent::NotReady);
    pass(seconds(5)).await;
    assert_eq!(gateway.state(), Some(State::Ready), "without a token nothing is sent");
    token_file(folder.path(), 1);
    network.all_know(State::Starting).await;
}

#[tokio::test(start_paused = true)]
async fn a_key_is_rotated_without_a_restart_while_gateways_accept_both() {
    let folder = tempfile::tempdir().unwrap();
    let network = Network::of(&[1]);
    fs::write(folder.path().join("one"), SECRET).unwrap();
    fs::write(folder.path().join("one.namespaces"), "shop").unwrap();
    let credential = PushCredential::KeyFile(folder.path().to_owned());
    let sidecar = Sidecar::with(&network, PushClientSettings { credential, ..plain() }, now);
    sidecar.report(PushEvent::Ready).await;
    fs::write(folder.path().join("two"), [NEXT_SECRET, b"\n"].concat()).unwrap();
    sidecar.report(PushEvent::NotReady).await;
    fs::remove_file(folder.path().join("one")).unwrap();
    sidecar.report(PushEvent::Ready).await;
    assert_eq!(network.gateway(1).attempts("accepted"), 3);
    assert_eq!(network.gateway(1).attempts("unauthenticated"), 0);
    // A last key that the gateways do not know is used as well: the new key was not just ignored.
    fs::write(folder.path().join("zero"), [b'0'; 32]).unwrap();
    sidecar.reporter.report(PushEvent::NotReady);
    network.until("a refusal", || network.gateway(1).attempts("unauthenticated") > 0).await;
    sidecar.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_file_changes_is_used_with_the_next_request() {
    let folder = tempfile::tempdir().unwrap();
    let (network, path) = (Network::of(&[1]), folder.path().join("one"));
    fs::write(&path, NEXT_SECRET).unwrap();
    let credential = PushCredential::KeyFile(path.clone());
    let sidecar = Sidecar::with(&network, PushClientSettings { credential, ..plain() }, now);
    sidecar.reporter.report(PushEvent::Ready);
    network.until("a refusal", || network.gateway(1).attempts("unauthenticated") > 0).await;
    fs::write(&path, SECRET).unwrap();
    network.all_know(State::Ready).await;
    sidecar.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_replaced_authority_is_trusted_and_the_old_one_no_longer() {
    let (folder, old, new) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    let ca = folder.path().join("ca.crt");
    fs::write(&ca, old.pem()).unwrap();
    let gateway_tls = old.leaf(&[NAME]).write(folder.path());
    let tls = server_tls_of(gateway_tls, None);
    let network = Network::new(Some(Arc::clone(&tls)));
    let gateway = network.start(1, PushMode::On);
    network.name(&[1]);
    let settings = with_token(folder.path(), Roots::Pem(vec![Pem::File(ca.clone())]));
    let sidecar = Sidecar::with(&network, settings, now);
    sidecar.report(PushEvent::Ready).await;
    // The connection was verified with the old authority: it is not used again.
    fs::write(&ca, new.pem()).unwrap();
    pass(seconds(5)).await;
    sidecar.reporter.report(PushEvent::NotReady);
    pass(seconds(10)).await;
    assert_eq!(gateway.state(), Some(State::Ready), "nothing is sent to a gateway of the old authority");
    new.leaf(&[NAME]).write(folder.path());
    tls.reload().unwrap();
    network.all_know(State::Starting).await;
}

#[tokio::test(start_paused = true)]
async fn a_bundle_with_two_authorities_trusts_certificates_of_both_while_one_replaces_the_other() {
    let (folder, old, new) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    let ca = folder.path().join("ca.crt");
    let both = format!("{}{}", old.pem(), new.pem());
    fs::write(&ca, &both).unwrap();
    let tls = server_tls_of(old.leaf(&[NAME]).write(folder.path()), None);
    let network = Network::new(Some(Arc::clone(&tls)));
    network.start(1, PushMode::On);
    network.name(&[1]);
    let settings = with_token(folder.path(), Roots::Pem(vec![Pem::File(ca.clone())]));
    let sidecar = Sidecar::with(&network, settings, now);
    sidecar.report(PushEvent::Ready).await;
    // A gateway that starts after the renewal has only the new certificate, and the bundle stays as it is.
    new.leaf(&[NAME]).write(folder.path());
    tls.reload().unwrap();
    network.start(2, PushMode::On);
    network.name(&[1, 2]);
    network.all_know(State::Ready).await;
    fs::write(&ca, new.pem()).unwrap();
    pass(seconds(5)).await;
    sidecar.reporter.report(PushEvent::NotReady);
    network.all_know(State::Starting).await;
}

#[tokio::test(start_paused = true)]
async fn a_replaced_client_certificate_is_presented() {
    let (folder, servers, clients) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
    let leaf = |uri: &str| {
        clients.leaf_by(&["cart.shop"], &KeyPair::generate().unwrap(), |params| {
            params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
        })
    };
    let network = Network::new(Some(server_tls(&servers, Some(&clients))));
    let gateway = network.start(1, PushMode::On);
    network.name(&[1]);
    let identity = leaf("spiffe://cluster.local/ns/elsewhere/sa/cart").write(folder.path());
    let tls = default_url().tls(Roots::Pem(vec![servers.ca()]), Some(identity));
    let credential = PushCredential::Certificate;
    let settings = PushClientSettings { gateways: default_url(), credential, tls, ..plain() };
    let sidecar = Sidecar::with(&network, settings, now);
    sidecar.reporter.report(PushEvent::Ready);
    network.until("it is refused", || gateway.attempts("denied") > 0).await;
    leaf("spiffe://cluster.local/ns/shop/sa/cart").write(folder.path());
    network.all_know(State::Ready).await;
}
