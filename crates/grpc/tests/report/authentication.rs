//! Who may report: every kind of bad credential is refused with a reason, and changes nothing.

use rouse_net::auth::PodIdentity;
use rouse_testkit::certificates::Authority;
use rouse_testkit::token_issuer::{START, SigningKey, claims_of};
use serde_json::json;
use tonic::{Code, Status};

use crate::harness::{
    AUTHORITY, Channel, Controller, GENEROUS, Gateway, KEY, NAME, Scripted, Told, channel, client_stream,
    gateway_pod, report_claims, reporter, set_time_of_day, tls, token,
};
use crate::network::{Host, Network, address};

async fn connection(network: &Network) -> Channel {
    client_stream(network.connect(address(1)).unwrap()).await
}

/// Why a stream with this header is refused.
async fn refused(network: &Network, authorization: &str) -> Status {
    let opened = Scripted::open_with(connection(network).await, Some(authorization.to_owned())).await;
    let status = opened.err().unwrap_or_else(|| Status::ok("accepted"));
    let secrets = authorization.split(['.', ' ']).filter(|part| part.len() > 16);
    assert!(secrets.into_iter().all(|secret| !status.message().contains(secret)), "{status:?}");
    status
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[tokio::test]
async fn no_bad_credential_is_accepted_and_the_answer_says_why() {
    let (network, controller) = (Network::default(), Controller::new());
    controller.up(&network, 1);
    let pod = gateway_pod("gateway-1");
    let claims = |change: fn(&mut serde_json::Value)| {
        let mut claims = report_claims(&pod);
        change(&mut claims);
        bearer(&KEY.sign(&claims))
    };
    let account = |namespace: &str, name: &str| {
        let (namespace, service_account) = (namespace.into(), name.into());
        bearer(&KEY.sign(&report_claims(&PodIdentity { namespace, service_account, ..pod.clone() })))
    };
    let signed = |key: &SigningKey| bearer(&key.sign(&report_claims(&pod)));
    let good = token("gateway-1");
    for (authorization, reason) in [
        (format!("Basic {good}"), "not Bearer TOKEN"),
        ("Bearer".to_owned(), "not Bearer TOKEN"),
        (bearer("nonsense"), "not a signed JWT"),
        // The audience of registrations.
        (bearer(&KEY.sign(&claims_of(&pod, START))), "not for the audience rouse-report"),
        (claims(|it| it["exp"] = json!(START - 30)), "expired"),
        (claims(|it| it["nbf"] = json!(START + 31)), "not valid yet"),
        (claims(|it| it["iss"] = json!("https://other")), "another issuer"),
        (claims(|it| it["kubernetes.io"]["pod"] = json!(null)), "not bound to a pod"),
        (signed(&SigningKey::new("k1")), "signature is wrong"),
        (signed(&SigningKey::new("k9")), "key"),
    ] {
        let status = refused(&network, &authorization).await;
        let found = (status.code(), status.message().contains(reason));
        assert_eq!(found, (Code::Unauthenticated, true), "{reason}: {status:?}");
    }
    for (authorization, reason) in [
        (account("shop", "cart"), "shop/cart may not report load; allowed: rouse-system/rouse-gateway"),
        (account("shop", "rouse-gateway"), "shop/rouse-gateway may not report load"),
    ] {
        let status = refused(&network, &authorization).await;
        let found = (status.code(), status.message().contains(reason));
        assert_eq!(found, (Code::PermissionDenied, true), "{reason}: {status:?}");
    }
    assert_eq!(controller.sink.all(), []);
    assert_eq!((controller.results("unauthenticated"), controller.results("denied")), (10, 2));
    assert_eq!(controller.server.connected().len(), 0);
    // The same with a good token.
    let stream = Scripted::open(&network, &good).await.unwrap();
    stream.begin().await;
    controller.sink.until("it reports", |sink| !sink.updates("gateway-1").is_empty()).await;
    let connected = controller.server.connected();
    assert_eq!(connected[0].pod, pod);
    assert_eq!((&connected[0].reporter, &*connected[0].greeting.version), (&reporter("gateway-1"), "0.1.0"));
    assert_eq!(controller.metric("rouse_load_reporters"), 1);
}

#[tokio::test]
async fn a_stream_has_exactly_one_credential() {
    let (network, controller) = (Network::default(), Controller::new());
    controller.up(&network, 1);
    let nothing = Scripted::open_with(connection(&network).await, None).await.err().unwrap();
    assert_eq!(nothing.code(), Code::Unauthenticated);
    assert!(nothing.message().contains("expected one header: authorization"), "{nothing:?}");
    let mut request = tonic::Request::new(());
    let good: tonic::metadata::MetadataValue<_> = format!("Bearer {}", token("gateway-1")).parse().unwrap();
    request.metadata_mut().append("authorization", good.clone());
    request.metadata_mut().append("authorization", good);
    let opened = Scripted::open_request(connection(&network).await, request.metadata().clone()).await;
    assert_eq!(opened.err().unwrap().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn without_the_keys_of_the_issuer_nobody_is_refused_as_a_stranger() {
    let (network, controller) = (Network::default(), Controller::new());
    controller.keys.answer(Err("the API server does not answer".into()));
    controller.up(&network, 1);
    let status = refused(&network, &bearer(&token("gateway-1"))).await;
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert_eq!(controller.results("unchecked"), 1);
}

#[tokio::test]
async fn a_connection_without_tls_gets_nowhere() {
    let (network, controller) = (Network::default(), Controller::new());
    controller.up(&network, 1);
    let plain = channel(network.connect(address(1)).unwrap()).await;
    let status = Scripted::open_with(plain, Some(bearer(&token("gateway-1")))).await.err().unwrap();
    assert_ne!(status.code(), Code::Ok);
    assert_eq!((controller.sink.all(), controller.server.connected().len()), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn a_token_is_never_sent_to_a_server_that_cannot_be_verified() {
    // The servers would accept the token, and count it.
    let strangers = Authority::named("stranger");
    for (authority, name) in [
        (&strangers, NAME),
        (&*AUTHORITY, "rouse-controller.other.svc.cluster.local"),
        (&*AUTHORITY, "rouse-register.rouse-system.svc.cluster.local"),
    ] {
        let (network, controller) = (std::sync::Arc::<Network>::default(), Controller::new());
        network.up(1, Host { server: controller.server.clone(), tls: tls(authority, name) });
        network.name(&[1]);
        let gateway = Gateway::start(&network, "gateway-1");
        let failed = "rouse_load_report_stream_ends_total{reason=\"tls\"}";
        let deadline = tokio::time::Instant::now() + GENEROUS;
        while gateway.metric(failed) < 3 {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::advance(std::time::Duration::from_millis(100)).await;
        }
        assert_eq!(controller.keys.fetches(), 0, "the server has never seen a token to verify");
        assert_eq!((controller.results("accepted"), controller.results("unauthenticated")), (0, 0));
        gateway.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_when_its_token_has_expired_and_the_next_one_brings_a_new_token() {
    let (network, controller) = (std::sync::Arc::<Network>::default(), Controller::new());
    controller.up(&network, 1);
    network.name(&[1]);
    let gateway = Gateway::start(&network, "gateway-1");
    controller.sink.until("it reports", |sink| sink.updates("gateway-1").len() > 5).await;
    // Nothing replaces the token in its file.
    set_time_of_day(3600 + 31);
    controller
        .sink
        .until("it is gone", |sink| sink.all().contains(&Told::Left { from: reporter("gateway-1") }))
        .await;
    assert!(controller.results("unauthenticated") >= 1);
    let reports = controller.sink.updates("gateway-1").len();
    let mut claims = report_claims(&gateway_pod("gateway-1"));
    claims["exp"] = json!(START + 7200);
    gateway.write_token(&KEY.sign(&claims));
    controller.sink.until("it is back", |sink| sink.updates("gateway-1").len() > reports).await;
    gateway.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_replaced_token_is_used_before_the_old_one_expires_and_no_report_is_missing() {
    let (network, controller) = (std::sync::Arc::<Network>::default(), Controller::new());
    controller.up(&network, 1);
    network.name(&[1]);
    let gateway = Gateway::start(&network, "gateway-1");
    controller.sink.until("it reports", |sink| sink.updates("gateway-1").len() > 5).await;
    let mut claims = report_claims(&gateway_pod("gateway-1"));
    claims["exp"] = json!(START + 7200);
    gateway.write_token(&KEY.sign(&claims));
    let ends = "rouse_load_report_stream_ends_total{reason=\"new_token\"}";
    controller.sink.until("the stream is new", |_| gateway.metric(ends) == 1).await;
    let reports = controller.sink.updates("gateway-1").len();
    controller.sink.until("it goes on", |sink| sink.updates("gateway-1").len() > reports + 5).await;
    let times: Vec<_> = controller.sink.told.lock().unwrap().iter().map(|(at, _)| *at).collect();
    let longest = times.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap();
    assert!(longest <= std::time::Duration::from_millis(1100), "{longest:?} without a report");
    assert_eq!(controller.results("unauthenticated"), 0);
    gateway.stop().await;
}
