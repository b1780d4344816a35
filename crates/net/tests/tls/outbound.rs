//! The client side of TLS, towards pods: names, roots, client certificates.

use rouse_core::probe::{ProbeCheck, ProbePlan, ProbeSpec, ReadinessProbe};
use rouse_net::probe::{ProbeFailure, probe};
use rouse_net::tls::{ClientConfigs, FaultSide};
use rouse_testkit::certificates::{self, rcgen};
use tokio::task::JoinSet;

use HandshakeKind::{Full, Resumed};

use super::*;

/// The client settings of the gateway for a service: its short name, whatever form the certificate has.
fn service(authority: &Authority) -> ClientSettings {
    let accepted = ["cart.shop", "cart.shop.svc.cluster.local"].map(name).to_vec();
    ClientSettings { accepted, ..trusting(authority, "cart.shop.svc") }
}

#[tokio::test]
async fn a_pod_is_verified_by_its_services_names_although_an_address_is_dialled() {
    let authority = Authority::new();
    for (names, good) in [
        (&["cart.shop.svc"][..], true),
        (&["cart.shop"], true),
        (&["other.test", "cart.shop.svc.cluster.local"], true),
        (&["*.shop.svc"], true),
        (&["cart.other.svc"], false),
        (&["cart"], false),
        (&["127.0.0.1"], false),
        (&[], false),
    ] {
        for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
            let server = serve(server(&[&authority.leaf(names)]));
            let client = client(ClientSettings { versions: only(version), ..service(&authority) });
            match shake(&server, &client).await {
                (Ok((_, peer)), Ok(_)) if good => assert_eq!(peer.sni.as_deref(), Some("cart.shop.svc")),
                (Err(theirs), Err(ours)) if !good => {
                    let TlsError::WrongName { wanted, presented } = &ours else { panic!("{ours:?}") };
                    assert_eq!(wanted, "cart.shop.svc");
                    assert_eq!(presented, names, "as people write them");
                    assert_eq!(ours.fault(), FaultSide::Peers);
                    assert_eq!(theirs.fault(), FaultSide::Ours, "{theirs}");
                }
                other => panic!("{names:?}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn each_flaw_of_a_certificate_has_its_own_error() {
    type Says = fn(&TlsError) -> bool;
    let authority = Authority::new();
    let leaf = |authority: &Authority, host: &str| authority.leaf(&[host]);
    let unknown: Says = |error| matches!(error, TlsError::UnknownCa);
    let expired: Says = |error| matches!(error, TlsError::Expired);
    let early: Says = |error| matches!(error, TlsError::NotYetValid);
    let wrong: Says = |error| matches!(error, TlsError::WrongName { .. });
    let table: [(Leaf, Says, &str); 5] = [
        (leaf(&Authority::new(), "cart.shop.svc"), unknown, "not issued by a trusted CA"),
        (leaf(&Authority::named("stranger"), "cart.shop.svc"), unknown, "not issued by a trusted CA"),
        (authority.leaf_of(&["cart.shop.svc"], [2001, 2002]), expired, "has expired"),
        (authority.leaf_of(&["cart.shop.svc"], [2301, 2302]), early, "not valid yet"),
        (leaf(&authority, "till.shop.svc"), wrong, "not for cart.shop.svc but for"),
    ];
    for (leaf, says, text) in table {
        let (server, _) = ServerTls::new(server(&[&leaf])).unwrap();
        let error = shake(&server, &client(service(&authority))).await.1.unwrap_err();
        assert!(says(&error) && error.to_string().contains(text), "{error:?} {error}");
        // A client without verification connects.
        let careless = client(ClientSettings { verify: false, ..service(&authority) });
        assert!(careless.is_unverified());
        talk(&server, &careless).await;
    }
    assert!(!client(service(&authority)).is_unverified());
}

/// `openssl req -x509` makes such a certificate: a leaf that is marked as a CA.
#[tokio::test]
async fn a_certificate_that_is_its_own_authority_is_trusted_by_itself() {
    let its_own = |years: [i32; 2]| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["cart.shop.svc".into()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) =
            (rcgen::date_time_ymd(years[0], 1, 1), rcgen::date_time_ymd(years[1], 1, 1));
        let certificate = params.self_signed(&key).unwrap();
        Leaf { chain: certificate.pem(), key: key.serialize_pem(), der: certificate.der().to_vec() }
    };
    let (mine, other, old) = (its_own([2001, 2301]), its_own([2001, 2301]), its_own([2001, 2002]));
    let trusting =
        |leaf: &Leaf, host| ClientSettings::new(name(host), Roots::Pem(vec![certificates::pem(&leaf.chain)]));
    talk(&serve(server(&[&mine])), &client(trusting(&mine, "cart.shop.svc"))).await;
    for (served, trusted, host) in
        [(&mine, &other, "cart.shop.svc"), (&mine, &mine, "till.shop.svc"), (&old, &old, "cart.shop.svc")]
    {
        let (server, _) = ServerTls::new(server(&[served])).unwrap();
        let error = shake(&server, &client(trusting(trusted, host))).await.1.unwrap_err();
        assert_eq!(matches!(error, TlsError::WrongName { .. }), host == "till.shop.svc", "{error:?}");
        assert_eq!(matches!(error, TlsError::Expired), served.der == old.der, "{error:?}");
    }
}

#[tokio::test]
async fn a_pod_may_ask_for_our_certificate_too() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let leaf = authority.leaf(&["cart.shop.svc"]);
    let settings = ServerSettings { client_auth: ClientAuth::Required(authority.ca()), ..server(&[&leaf]) };
    let server = serve(settings);
    for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
        let with = |identity| ClientSettings { identity, versions: only(version), ..service(&authority) };
        let good = client(with(Some(authority.leaf(&["gateway"]).identity())));
        assert!(talk(&server, &good).await.1.client_cert);
        let strange = |stranger: &Authority| Some(stranger.leaf(&["gateway"]).identity());
        let renamed = Authority::named("stranger");
        for (identity, missing) in [(None, true), (strange(&stranger), false), (strange(&renamed), false)] {
            let (ours, theirs) = pair().await;
            let client = client(with(identity));
            let (accepted, connected) =
                tokio::join!(server.accept(ours, patience()), client.connect(theirs, patience()));
            accepted.unwrap_err();
            let error = match connected {
                Err(error) => error,
                Ok((mut stream, _)) => TlsError::of_stream(&stream.read_u8().await.unwrap_err()).unwrap(),
            };
            assert_eq!(matches!(error, TlsError::OursMissing), missing, "{version:?} {error:?}");
            assert_eq!(matches!(error, TlsError::OursRefused(_)), !missing, "{version:?} {error:?}");
            assert_eq!(error.fault(), FaultSide::Ours);
        }
    }
}

#[tokio::test]
async fn equal_settings_share_a_configuration_and_so_their_sessions() {
    let authority = Authority::new();
    let server = serve(server(&[&authority.leaf(&["cart.shop.svc"])]));
    let configs = ClientConfigs::new(2.try_into().unwrap());
    let get = |settings: &ClientSettings| configs.get(settings, |warning| panic!("{warning}")).unwrap();
    for version in [TlsVersion::Tls12, TlsVersion::Tls13] {
        let settings = ClientSettings { versions: only(version), ..service(&authority) };
        let mut kinds = Vec::new();
        for _ in 0..4 {
            kinds.push(talk(&server, &get(&settings.clone())).await.2);
        }
        assert_eq!(kinds, [Full, Resumed, Resumed, Resumed], "{version:?}");
    }
    assert_eq!(configs.len(), 2);

    let [one, two, three] = ["one.test", "two.test", "three.test"].map(|host| trusting(&authority, host));
    let (first, second) = (get(&one), get(&two));
    assert!(Arc::ptr_eq(&first, &get(&one)));
    get(&three);
    assert_eq!(configs.len(), 2, "it is bounded");
    assert!(Arc::ptr_eq(&first, &get(&one)), "what was asked for last stays");
    assert!(!Arc::ptr_eq(&second, &get(&two)), "what was not goes");
    let missing = Roots::Pem(vec![Pem::File("/nowhere/ca.pem".into())]);
    let error = configs.get(&ClientSettings::new(name("a.test"), missing), |_| ()).unwrap_err();
    assert!(error.to_string().starts_with("/nowhere/ca.pem: cannot be read"), "{error}");
}

/// A server that answers each request with `answer`, over TLS.
async fn pod(server: Arc<ServerTls>, answer: &'static [u8]) -> (u16, JoinSet<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok((mut stream, peer)) = server.accept(stream, patience()).await {
                assert_eq!((peer.sni, peer.alpn), (None, None), "kubelet sends neither");
                let mut head = [0; 4096];
                let read = stream.read(&mut head).await.unwrap();
                assert!(head[..read].starts_with(b"GET /healthz HTTP/1.1\r\n"));
                stream.write_all(answer).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        }
    });
    (port, tasks)
}

async fn ask(port: u16, patience: Instant) -> Result<(), ProbeFailure> {
    let check = ProbeCheck::Http { port, path: "/healthz".into(), tls: true, headers: Vec::new() };
    let containers = vec![Some(ReadinessProbe { check, foreign_host: false })];
    let plan = ProbePlan::new(&ProbeSpec { containers, readiness_gates: 0 }, 0, true).unwrap();
    probe(Ipv4Addr::LOCALHOST.into(), &plan, patience).await
}

#[tokio::test]
async fn an_https_probe_asks_for_an_answer_and_not_for_a_certificate() {
    let authority = Authority::new();
    let (server, _) = ServerTls::new(server(&[&authority.leaf_of(&["else.test"], [2001, 2002])])).unwrap();
    let server = Arc::new(server);
    let (good, _first) = pod(Arc::clone(&server), b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    ask(good, patience()).await.unwrap();
    let (bad, _second) = pod(server, b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").await;
    let failure = ask(bad, patience()).await.unwrap_err();
    assert!(matches!(failure, ProbeFailure::Status(status) if status == 503), "{failure:?}");

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let plain = async {
        let mut stream = listener.accept().await.unwrap().0;
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        stream
    };
    let (failure, _stream) = tokio::join!(ask(port, patience()), plain);
    let failure = failure.unwrap_err();
    assert!(matches!(failure, ProbeFailure::Tls(TlsError::NotTls)) && failure.blames_pod(), "{failure:?}");
    // The queue accepts the connection; no answer comes.
    let failure = ask(port, Instant::now() + Duration::from_secs(1)).await.unwrap_err();
    assert!(matches!(failure, ProbeFailure::Deadline), "{failure:?}");
    drop(listener);
    assert!(ask(port, patience()).await.unwrap_err().unreached());
}
