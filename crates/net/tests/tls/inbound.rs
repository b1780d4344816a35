//! The server side of TLS: certificate selection, ALPN, client certificates, session resumption and broken handshakes.

use rouse_core::host::Host;
use rouse_net::tls::{CertificateWarningKind, FaultSide, Identity, PolicyId, TlsPolicy};
use rouse_testkit::certificates::rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, RsaKeySize};

use HandshakeKind::{Full, Resumed};

use super::*;
use rouse_testkit::certificates::pem;

use crate::keys::older_form;

#[tokio::test]
async fn the_certificate_is_chosen_by_the_name_that_the_client_sends() {
    let authority = Authority::new();
    let leaves = [
        authority.leaf(&["default.test"]),
        authority.leaf(&["*.shop.test"]),
        authority.leaf(&["cart.shop.test", "Other.test"]),
        authority.leaf(&["cart.shop.test", "ignored.test"]),
    ];
    let mut settings = server(&leaves.each_ref());
    settings.certificates[3].names = vec!["configured.test".parse().unwrap()];
    let server = serve(settings);
    for (host, expected) in [
        ("cart.shop.test", 2),
        ("other.test", 2),
        ("OTHER.test", 2),
        ("till.shop.test", 1),
        ("a.till.shop.test", 0),
        ("shop.test", 0),
        ("default.test", 0),
        ("unknown.test", 0),
        // A client sends no SNI for an address.
        ("127.0.0.1", 0),
        ("configured.test", 3),
        ("ignored.test", 0),
    ] {
        let (stream, peer, _) = talk(&server, &trustful(host)).await;
        assert!(shown(&stream) == leaves[expected].der, "{host}");
        let sni = (host != "127.0.0.1").then(|| host.to_ascii_lowercase().into());
        assert_eq!((peer.sni, peer.client_cert), (sni, false));
    }
}

#[tokio::test]
async fn keys_are_read_in_all_their_encodings() {
    let authority = Authority::new();
    let elliptic = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let rsa = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
    for (key, text) in [
        (&elliptic, elliptic.serialize_pem()),
        (&elliptic, older_form(&elliptic, "EC PRIVATE KEY")),
        (&rsa, rsa.serialize_pem()),
        (&rsa, older_form(&rsa, "RSA PRIVATE KEY")),
    ] {
        let mut leaf = authority.leaf_by(&["cart.test"], key, |_| {});
        leaf.key = text;
        talk(&serve(server(&[&leaf])), &client(trusting(&authority, "cart.test"))).await;
    }
}

#[test]
fn a_stale_or_nameless_certificate_is_served_with_a_warning() {
    let authority = Authority::new();
    let good = authority.leaf(&["a.test"]);
    for (leaf, caution) in [
        (authority.leaf_of(&["b.test"], [2001, 2002]), CertificateWarningKind::Expired),
        (authority.leaf_of(&["b.test"], [2301, 2302]), CertificateWarningKind::NotYetValid),
        (authority.leaf::<&str>(&[]), CertificateWarningKind::NeverChosen),
    ] {
        let (_, warnings) = ServerTls::new(server(&[&good, &leaf])).unwrap();
        assert_eq!(warnings.iter().map(|warning| &warning.what).collect::<Vec<_>>(), [&caution]);
    }
}

#[tokio::test]
async fn only_versions_within_the_bounds_are_spoken() {
    let authority = Authority::new();
    let leaf = authority.leaf(&["cart.test"]);
    let all = Versions::default();
    let (old, new) = (only(TlsVersion::Tls12), only(TlsVersion::Tls13));
    for (ours, theirs, expected) in [
        (all, all, Some(rustls::ProtocolVersion::TLSv1_3)),
        (old, all, Some(rustls::ProtocolVersion::TLSv1_2)),
        (all, old, Some(rustls::ProtocolVersion::TLSv1_2)),
        (new, all, Some(rustls::ProtocolVersion::TLSv1_3)),
        (new, old, None),
        (old, new, None),
    ] {
        let server = serve(ServerSettings { versions: ours, ..server(&[&leaf]) });
        let client = client(ClientSettings { versions: theirs, ..trusting(&authority, "cart.test") });
        match (shake(&server, &client).await, expected) {
            ((Ok(_), Ok((stream, _))), Some(version)) => {
                assert_eq!(stream.get_ref().1.protocol_version(), Some(version));
            }
            ((Err(ours), Err(theirs)), None) => {
                assert!(matches!(ours, TlsError::NoCommonVersion), "{ours:?}");
                assert!(matches!(theirs, TlsError::NoCommonVersion), "{theirs:?}");
                assert_eq!(ours.fault(), FaultSide::Either);
            }
            (other, _) => panic!("{other:?}"),
        }
    }
    assert!(Versions::new(TlsVersion::Tls13, TlsVersion::Tls12).is_err());
}

#[tokio::test]
async fn both_sides_agree_on_what_they_speak_inside() {
    use Alpn::{H2, Http1};
    let authority = Authority::new();
    let leaf = authority.leaf(&["cart.test"]);
    for (ours, theirs, expected) in [
        (vec![H2, Http1], vec![H2, Http1], Some(Some(H2))),
        (vec![H2, Http1], vec![Http1, H2], Some(Some(H2))),
        (vec![H2, Http1], vec![Http1], Some(Some(Http1))),
        (vec![H2, Http1], vec![], Some(None)),
        (vec![], vec![H2], Some(None)),
        (vec![Http1], vec![H2], None),
    ] {
        let server = serve(ServerSettings { alpn: ours, ..server(&[&leaf]) });
        let client = client(ClientSettings { alpn: theirs, ..trusting(&authority, "cart.test") });
        match (shake(&server, &client).await, expected) {
            ((Ok((_, peer)), Ok((_, alpn))), Some(expected)) => {
                assert_eq!((peer.alpn, alpn), (expected, expected));
            }
            ((Err(ours), Err(theirs)), None) => {
                assert!(matches!(ours, TlsError::NoCommonProtocol), "{ours:?}");
                assert!(matches!(theirs, TlsError::NoCommonProtocol), "{theirs:?}");
            }
            (other, _) => panic!("{other:?}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Ends {
    Known,
    Unknown,
    NoCertificate,
    UnknownCa,
}

#[tokio::test]
async fn clients_show_a_certificate_where_they_must() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let leaf = authority.leaf(&["cart.test"]);
    let known = authority.leaf(&["client"]).identity();
    let strange = stranger.leaf(&["client"]).identity();
    let renamed = Authority::named("stranger").leaf(&["client"]).identity();
    let (none, optional, required) =
        (ClientAuth::None, ClientAuth::Optional(authority.ca()), ClientAuth::Required(authority.ca()));
    for (auth, identity, expected) in [
        (&none, None, Ends::Unknown),
        (&none, Some(&known), Ends::Unknown),
        (&optional, None, Ends::Unknown),
        (&optional, Some(&known), Ends::Known),
        (&optional, Some(&strange), Ends::UnknownCa),
        (&required, None, Ends::NoCertificate),
        (&required, Some(&known), Ends::Known),
        (&required, Some(&strange), Ends::UnknownCa),
        (&required, Some(&renamed), Ends::UnknownCa),
    ] {
        for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
            let server = serve(ServerSettings { client_auth: auth.clone(), ..server(&[&leaf]) });
            let settings = trusting(&authority, "cart.test");
            let client =
                client(ClientSettings { identity: identity.cloned(), versions: only(version), ..settings });
            let ends = match shake(&server, &client).await.0 {
                Ok((_, TlsHandshake { client_cert: true, .. })) => Ends::Known,
                Ok(_) => Ends::Unknown,
                Err(TlsError::NoCertificate) => Ends::NoCertificate,
                Err(TlsError::UnknownCa) => Ends::UnknownCa,
                Err(error) => panic!("{error:?}"),
            };
            assert_eq!(ends, expected, "{auth:?} {identity:?} {version:?}");
        }
    }
}

fn guarded(settings: ServerSettings, roots: &Authority, others: &Authority) -> ServerSettings {
    let policy = |host: &str, client_auth| TlsPolicy { hosts: vec![host.parse().unwrap()], client_auth };
    let policies = vec![
        policy("*.bank.test", ClientAuth::Required(roots.ca())),
        policy("lobby.bank.test", ClientAuth::Optional(roots.ca())),
        policy("open.bank.test", ClientAuth::None),
        policy("rival.test", ClientAuth::Required(others.ca())),
    ];
    ServerSettings { policies, ..settings }
}

#[tokio::test]
async fn a_connection_carries_only_requests_for_hosts_that_are_no_stricter() {
    let (authority, other) = (Authority::new(), Authority::new());
    let leaf = authority.leaf(&["cart.test"]);
    let server = serve(guarded(server(&[&leaf]), &authority, &other));
    let policy_of = |host: &str| server.policy_of(Some(&Host::parse(host.as_bytes()).unwrap()));
    let identity = Some(authority.leaf(&["client"]).identity());
    let hosts = ["vault.bank.test", "lobby.bank.test", "open.bank.test", "rival.test", "else.test"];
    for (sni, admitted) in [
        ("vault.bank.test", [true, true, true, false, true]),
        ("lobby.bank.test", [false, true, true, false, true]),
        ("open.bank.test", [false, false, true, false, true]),
        ("else.test", [false, false, true, false, true]),
        ("127.0.0.1", [false, false, true, false, true]),
    ] {
        let settings =
            ClientSettings { identity: identity.clone(), verify: false, ..trusting(&authority, sni) };
        let (_, peer, _) = talk(&server, &client(settings)).await;
        assert_eq!(hosts.map(|host| peer.policy.admits(&policy_of(host))), admitted, "{sni}");
        // Regardless of case, trailing dot, port and depth of the host.
        let vault = policy_of("Deep.Vault.BANK.test.:8443");
        assert_eq!(peer.policy.admits(&vault), admitted[0], "{sni}");
        // Connections outlive a reload.
        server.reload().unwrap();
        assert_eq!(hosts.map(|host| peer.policy.admits(&policy_of(host))), admitted, "{sni}");
    }
    let required = |id: &PolicyId| matches!(id.client_auth(), ClientAuth::Required(_));
    assert!(required(&policy_of("vault.bank.test")) && !required(&policy_of("bank.test")));
    assert!(!required(&server.policy_of(None)));
}

#[tokio::test]
async fn a_ticket_opens_only_the_door_it_was_got_at() {
    let (authority, other) = (Authority::new(), Authority::new());
    let leaf = authority.leaf(&["cart.test"]);
    let open = server(&[&leaf]);
    for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
        let server = serve(open.clone());
        let settings = ClientSettings {
            verify: false,
            versions: only(version),
            ..trusting(&authority, "vault.bank.test")
        };
        let client = client(settings);
        assert_eq!(talk(&server, &client).await.2, Full);
        assert_eq!(talk(&server, &client).await.2, Resumed);
        // From now on that host requires a certificate, and the session was made without one.
        server.replace(guarded(open.clone(), &authority, &other)).unwrap();
        let accepted = shake(&server, &client).await.0;
        assert!(matches!(accepted, Err(TlsError::NoCertificate)), "{accepted:?}");
    }
}

#[tokio::test]
async fn sessions_are_resumed_across_a_reload_that_leaves_client_certificates_alone() {
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let roots = folder.path().join("ca.pem");
    let write = |authority: &Authority, more: &str| {
        let Pem::Bytes(bytes) = authority.ca() else { panic!() };
        std::fs::write(&roots, [&bytes, more.as_bytes()].concat()).unwrap();
    };
    write(&authority, "");
    let identity = authority.leaf(&["cart.test"]).write(folder.path());
    let mut settings = ServerSettings::new(vec![CertEntry { identity, names: Vec::new() }]);
    settings.client_auth = ClientAuth::Required(Pem::File(roots.clone()));
    let server = serve(settings);
    for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
        let identity = Some(authority.leaf(&["client"]).identity());
        let settings = trusting(&authority, "cart.test");
        let client = client(ClientSettings { identity, versions: only(version), ..settings });
        let mut kinds = Vec::new();
        for round in 0..5 {
            if round == 2 {
                authority.leaf(&["cart.test"]).write(folder.path());
                server.reload().unwrap();
            }
            if round == 4 {
                // One more root: a client that was verified before is verified again.
                let Pem::Bytes(more) = Authority::new().ca() else { panic!() };
                write(&authority, std::str::from_utf8(&more).unwrap());
                server.reload().unwrap();
            }
            let (_, peer, kind) = talk(&server, &client).await;
            assert!(peer.client_cert, "a resumed session keeps its client's certificate");
            kinds.push(kind);
        }
        assert_eq!(kinds, [Full, Resumed, Resumed, Resumed, Full], "{version:?}");
    }
}

#[tokio::test]
async fn who_does_not_shake_hands_is_told_apart() {
    let authority = Authority::new();
    let server = serve(server(&[&authority.leaf(&["cart.test"])]));
    let (ours, _theirs) = pair().await;
    let error = server.accept(ours, Instant::now() + Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, TlsError::Timeout), "{error:?}");
    let (ours, mut theirs) = pair().await;
    theirs.write_all(b"GET / HTTP/1.1\r\nhost: cart.test\r\n\r\n").await.unwrap();
    let error = server.accept(ours, patience()).await.unwrap_err();
    assert!(matches!(error, TlsError::NotTls), "{error:?}");
    let (ours, theirs) = pair().await;
    drop(theirs);
    let error = server.accept(ours, patience()).await.unwrap_err();
    assert!(matches!(error, TlsError::Io(_)), "{error:?}");
}

#[test]
fn a_private_key_is_never_printed() {
    let leaf = Authority::new().leaf(&["cart.test"]);
    let Identity { key, .. } = leaf.identity();
    let text = format!("{key} {key:?} {:?}", server(&[&leaf]));
    assert!(text.contains("bytes of PEM") && !text.contains("PRIVATE"), "{text}");
    assert!(ServerTls::new(ServerSettings::new(Vec::new())).is_err());
    assert_eq!(pem("a"), pem("a"));
}
