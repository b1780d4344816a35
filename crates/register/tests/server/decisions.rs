//! What the server decides about one request, limits included, and what the decision changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rouse_core::budget::Rate;
use rouse_core::endpoint::{PodUid, PortName, Slice, SliceEndpoint, SlicePort, Source, State};
use rouse_core::service::Service;
use rouse_net::auth::{
    AuthError, BoxFuture, ClaimError, ClaimGrant, PodIdentity, PushMode, Sender, TokenAuthenticator,
    TokenCheck, TokenReviewer, TokenSettings,
};
use rouse_register::server::{RegistrationRates, RegistrationRequest};
use rouse_register::wire::{AnswerStatus, ErrorBody, RegistrationBody};
use rouse_testkit::token_issuer::{START, SigningKey, claims_of};
use tokio::task::JoinSet;

use crate::harness::{POD_IP, Scene, TOKEN, UNREVIEWED, body, cart, cart_1, now};

fn ready() -> Vec<(String, State, Source)> {
    vec![("shop/cart-1".into(), State::Ready, Source::Push)]
}

#[tokio::test]
async fn a_registration_makes_the_pod_routable_and_its_repetition_renews_it() {
    let scene = Scene::new();
    let answer = scene.answered(&body(1, "ready")).await;
    assert_eq!((answer.status, answer.lease_seconds), (AnswerStatus::Accepted, 60));
    assert_eq!((&*answer.boot, answer.sequence), ("1700000000000-000000000000feed", 1));
    assert_eq!(answer.gateways.len(), 64, "of a hundred gateways");
    assert_eq!(scene.endpoints(), ready());
    assert_eq!(scene.status(&body(1, "ready")).await, AnswerStatus::Renewed);
    assert_eq!(scene.attempts("shop/cart", "ready", "accepted"), 1);
    assert_eq!(scene.attempts("shop/cart", "ready", "renewed"), 1);
}

#[tokio::test]
async fn an_older_registration_is_stale_and_hears_the_newest_order() {
    let scene = Scene::new();
    scene.answered(&body(7, "not-ready")).await;
    let answer = scene.answered(&body(6, "ready")).await;
    assert_eq!((answer.status, answer.sequence), (AnswerStatus::Stale, 7));
    assert_eq!(scene.endpoints()[0].1, State::Starting);
    assert_eq!(scene.attempts("shop/cart", "ready", "stale"), 1);
}

#[tokio::test]
async fn a_thousand_concurrent_duplicates_are_one_change_and_all_are_answered() {
    let scene = Arc::new(Scene::new());
    let mut tasks = JoinSet::new();
    for _ in 0..1000 {
        let scene = Arc::clone(&scene);
        tasks.spawn(async move { scene.status(&body(1, "ready")).await });
    }
    let statuses = tasks.join_all().await;
    let accepted = statuses.iter().filter(|status| **status == AnswerStatus::Accepted).count();
    assert_eq!((accepted, statuses.len(), scene.generation()), (1, 1000, 1));
}

#[tokio::test]
async fn ready_not_ready_and_ready_at_once_are_three_changes() {
    let scene = Scene::new();
    for (sequence, event) in [(1, "ready"), (2, "not-ready"), (3, "ready")] {
        assert_eq!(scene.status(&body(sequence, event)).await, AnswerStatus::Accepted);
    }
    assert_eq!((scene.generation(), scene.endpoints()), (3, ready()));
}

/// Sends a request that must be refused with this status and outcome, and checks that nothing changed. Returns the reason.
async fn refused(
    scene: &Scene,
    authorization: Option<&str>,
    body: &[u8],
    status: u16,
    outcome: &str,
) -> String {
    let (before, generation) = (scene.endpoints(), scene.generation());
    let counted: u64 = scene.counted().values().sum();
    let reply = scene.send(POD_IP, authorization, body).await;
    let error: ErrorBody = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!((reply.status, &*error.error), (status, outcome), "{}", error.reason);
    assert!(!error.reason.is_empty());
    assert_eq!((scene.endpoints(), scene.generation()), (before, generation), "nothing changed");
    assert_eq!(scene.counted().values().sum::<u64>(), counted + 2, "counted once in each metric");
    error.reason
}

#[tokio::test]
async fn a_request_without_a_good_credential_changes_nothing() {
    let scene = Scene::new();
    scene.answered(&body(1, "ready")).await;
    let text = serde_json::to_vec(&body(2, "not-ready")).unwrap();
    let good = scene.signed(&text);
    let replaced = good.replace("key=one", "key=two");
    let mut tampered = text.clone();
    tampered.push(b' ');
    refused(&scene, None, &text, 401, "unauthenticated").await;
    refused(&scene, Some("Bearer nonsense"), &text, 401, "unauthenticated").await;
    let reason = refused(&scene, Some(&format!("Bearer {}", *UNREVIEWED)), &text, 503, "unavailable").await;
    assert!(!reason.contains("API server"), "a client that has proved nothing hears no reason: {reason}");
    refused(&scene, Some("Basic eDp5"), &text, 401, "unauthenticated").await;
    refused(&scene, Some(&replaced), &text, 401, "unauthenticated").await;
    refused(&scene, Some(&good), &tampered, 401, "unauthenticated").await;
    let mut other = scene.signed(&text);
    other.pop();
    refused(&scene, Some(&other), &text, 401, "unauthenticated").await;
    // The signature itself is good once.
    assert_eq!(scene.send(POD_IP, Some(&good), &text).await.status, 200);
    refused(&scene, Some(&good), &text, 401, "unauthenticated").await;
    assert_eq!(scene.attempts("_other", "unknown", "unauthenticated"), 7);
    assert_eq!(scene.attempts("_other", "unknown", "unavailable"), 1);
}

#[tokio::test]
async fn a_token_over_plain_text_is_refused_even_if_it_is_good() {
    let scene = Scene::new();
    let text = serde_json::to_vec(&body(1, "ready")).unwrap();
    let authorization = format!("Bearer {}", *TOKEN);
    let request = |secure| RegistrationRequest {
        peer: "192.0.2.7".parse().unwrap(),
        secure,
        certificate: None,
        authorization: Some(authorization.as_bytes()),
        body: &text,
    };
    assert_eq!(scene.server.register(&request(false)).await.status, 401);
    assert_eq!(scene.endpoints(), []);
    assert_eq!(
        scene.server.register(&request(true)).await.status,
        200,
        "a token proves the pod, from any address"
    );
    assert_eq!(scene.endpoints(), ready());
}

#[tokio::test]
async fn a_good_token_of_another_pod_speaks_only_for_that_pod() {
    let scene = Scene::new();
    for uid in ["uid-1", "uid-2"] {
        scene.grant(uid, Ok(ClaimGrant::default()));
    }
    let lies = [
        RegistrationBody { uid: "uid-2".into(), ..body(1, "ready") },
        RegistrationBody { pod: "cart-2".into(), ..body(1, "ready") },
        RegistrationBody { namespace: "bank".into(), ..body(1, "ready") },
    ];
    for lie in lies {
        let text = serde_json::to_vec(&lie).unwrap();
        refused(&scene, Some(&format!("Bearer {}", *TOKEN)), &text, 403, "denied").await;
    }
    assert!(scene.ownership.claims.lock().unwrap().is_empty(), "it is not even asked");
}

#[tokio::test]
async fn a_shared_key_speaks_only_for_its_namespaces_and_from_the_pod_itself() {
    let scene = Scene::new();
    let elsewhere = RegistrationBody { namespace: "bank".into(), ..body(1, "ready") };
    assert_eq!(scene.register(&elsewhere).await.status, 403);
    let text = serde_json::to_vec(&body(1, "ready")).unwrap();
    for peer in ["10.0.0.2", "::ffff:10.0.0.2"] {
        assert_eq!(scene.send(peer, Some(&scene.signed(&text)), &text).await.status, 403, "{peer}");
    }
    assert_eq!(scene.endpoints(), []);
    let mapped = format!("::ffff:{POD_IP}");
    assert_eq!(scene.send(&mapped, Some(&scene.signed(&text)), &text).await.status, 200);
}

#[tokio::test]
async fn a_client_certificate_speaks_for_pods_of_its_service_account_and_from_the_pod_itself() {
    let scene = Scene::new();
    let text = serde_json::to_vec(&body(1, "ready")).unwrap();
    let sender =
        |namespace: &str| Ok(Sender::ServiceAccount { namespace: namespace.into(), name: "cart".into() });
    for (peer, namespace, status) in [(POD_IP, "bank", 403), ("10.0.0.2", "shop", 403), (POD_IP, "shop", 200)]
    {
        let sender = sender(namespace);
        let request = RegistrationRequest {
            peer: peer.parse().unwrap(),
            secure: true,
            certificate: Some(&sender),
            authorization: None,
            body: &text,
        };
        assert_eq!(scene.server.register(&request).await.status, status, "{peer} {namespace}");
    }
    let claims = scene.ownership.claims.lock().unwrap();
    assert_eq!(claims.len(), 1);
    assert_eq!(claims[0].service_account.as_deref(), Some("cart"), "ownership compares it with the pod's");
}

#[tokio::test]
async fn what_the_pod_does_not_own_is_denied_and_what_cannot_be_checked_is_tried_again() {
    let scene = Scene::new();
    scene.bench.registry.remove(&cart());
    scene.grant("uid-1", Err(ClaimError::Denied("10.9.9.9 is not an address of the pod".into())));
    let reply = scene.register(&body(1, "ready")).await;
    assert_eq!((reply.status, reply.retry_after), (403, None));
    assert!(String::from_utf8_lossy(&reply.body).contains("10.9.9.9"));
    scene.grant("uid-1", Err(ClaimError::Unavailable("the API server does not answer".into())));
    let reply = scene.register(&body(1, "ready")).await;
    assert_eq!((reply.status, reply.retry_after), (503, Some(1)));
    scene.grant("uid-1", Err(ClaimError::TooEarly("the pod has no address yet".into())));
    let reply = scene.register(&body(1, "ready")).await;
    assert_eq!(
        (reply.status, reply.retry_after),
        (503, Some(0)),
        "the kubelet reports the address any moment"
    );
    assert_eq!(scene.endpoints(), []);
    assert_eq!(scene.attempts("_other", "ready", "denied"), 1, "a name that was not verified is no label");
    assert_eq!(scene.attempts("_other", "ready", "unavailable"), 2);
}

/// A pod of another namespace, which had the address of `cart-1` before.
fn neighbour(scene: &Scene) -> Arc<Service> {
    let other = scene.bench.registry.service(&"till/pay".parse().unwrap());
    let pod = Some(rouse_testkit::fakes::pod(9));
    let endpoint =
        SliceEndpoint { ip: POD_IP.parse().unwrap(), conditions: rouse_testkit::fakes::READY, pod };
    let ports = vec![SlicePort { name: PortName::new("web"), number: 8080 }];
    other.put_slice("a", Slice { ports, endpoints: vec![endpoint] });
    scene.bench.clock.advance(Duration::from_secs(1));
    other
}

fn endpoints_of(service: &Service) -> usize {
    service.snapshot().ports.iter().map(|port| port.endpoints().len()).sum()
}

#[tokio::test]
async fn a_claim_that_ends_between_the_check_and_the_push_leaves_nothing_and_displaces_no_pod() {
    let scene = Scene::new();
    let other = neighbour(&scene);
    scene.ownership.revoked.lock().unwrap().push(PodUid::new("uid-1"));
    assert_eq!(scene.register(&body(1, "ready")).await.status, 503);
    assert_eq!((scene.endpoints(), endpoints_of(&other)), (vec![], 1));
    scene.ownership.revoked.lock().unwrap().clear();
    assert_eq!(scene.register(&body(1, "ready")).await.status, 200);
    assert_eq!((scene.endpoints(), endpoints_of(&other)), (ready(), 0));
}

#[tokio::test]
async fn a_pod_whose_deletion_begins_between_the_check_and_the_push_does_not_become_ready() {
    let scene = Scene::new();
    scene.ownership.leaving.lock().unwrap().push(PodUid::new("uid-1"));
    assert_eq!(scene.register(&body(1, "ready")).await.status, 503);
    assert_eq!(scene.endpoints(), []);
    assert_eq!(scene.register(&body(1, "draining")).await.status, 200);
}

#[tokio::test]
async fn a_service_that_was_deleted_after_the_check_does_not_come_back() {
    let scene = Scene::new();
    scene.bench.registry.remove(&cart());
    assert_eq!(scene.register(&body(1, "ready")).await.status, 503);
    assert!(scene.bench.registry.get(&cart()).is_none());
}

#[tokio::test]
async fn a_pod_that_is_being_deleted_may_drain_but_not_become_ready() {
    let scene = Scene::new();
    scene.grant("uid-1", Ok(ClaimGrant { leaving: true, ..ClaimGrant::default() }));
    assert_eq!(scene.register(&body(1, "ready")).await.status, 403);
    assert_eq!(scene.endpoints(), []);
    assert_eq!(scene.register(&body(1, "draining")).await.status, 200);
}

#[tokio::test]
async fn a_pod_on_the_network_of_its_node_displaces_no_pod_of_another_namespace_at_its_address() {
    for (host_network, stays) in [(true, 1), (false, 0)] {
        let scene = Scene::new();
        let other = neighbour(&scene);
        scene.grant("uid-1", Ok(ClaimGrant { host_network, ..ClaimGrant::default() }));
        assert_eq!(scene.register(&body(1, "ready")).await.status, 200);
        assert_eq!(scene.endpoints(), ready());
        assert_eq!(endpoints_of(&other), stays, "hostNetwork: {host_network}");
    }
}

#[tokio::test]
async fn observed_and_switched_off_pushes_are_counted_and_change_nothing() {
    let cases = [
        (PushMode::Observe, None, "observed"),
        (PushMode::Off, None, "off"),
        (PushMode::On, Some(PushMode::Observe), "observed"),
        (PushMode::On, Some(PushMode::Off), "off"),
    ];
    for (mode, of_service, result) in cases {
        let scene = Scene::with(mode, RegistrationRates::default());
        scene.grant("uid-1", Ok(ClaimGrant { mode: of_service, ..ClaimGrant::default() }));
        assert_eq!(scene.register(&body(1, "ready")).await.status, 200);
        assert_eq!(
            (scene.endpoints(), scene.attempts("shop/cart", "ready", result)),
            (vec![], 1),
            "{result}"
        );
    }
    let scene = Scene::with(PushMode::Off, RegistrationRates::default());
    scene.grant("uid-1", Ok(ClaimGrant { mode: Some(PushMode::On), ..ClaimGrant::default() }));
    scene.register(&body(1, "ready")).await;
    assert_eq!(scene.endpoints(), ready(), "the service decides");
}

#[tokio::test]
async fn a_body_that_is_not_a_registration_is_named() {
    let scene = Scene::new();
    let good = serde_json::to_value(body(1, "ready")).unwrap();
    let with = |field: &str, value: serde_json::Value| {
        let mut changed = good.clone();
        changed[field] = value;
        serde_json::to_vec(&changed).unwrap()
    };
    let many: BTreeMap<String, u16> = (1..=65).map(|n| (format!("p{n}"), n)).collect();
    let cases = [
        (b"{".to_vec(), "registration"),
        (b"[]".to_vec(), "registration"),
        (with("event", "gone".into()), "event"),
        (with("boot", "yesterday".into()), "boot"),
        (with("ips", serde_json::json!([])), "ips"),
        (with("ips", serde_json::json!(["10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.1"])), "ips"),
        (with("ips", serde_json::json!(["cart.shop"])), "registration"),
        (with("ports", serde_json::json!({})), "ports"),
        (with("ports", serde_json::json!({"http": 0})), "ports"),
        (with("ports", serde_json::to_value(many).unwrap()), "ports"),
        (with("service", "a/b".into()), "service"),
        (with("pod", "../x".into()), "pod"),
        (with("uid", "".into()), "uid"),
        (with("sequence", serde_json::json!(-1)), "registration"),
    ];
    for (text, named) in cases {
        let reply = scene.send(POD_IP, Some(&scene.signed(&text)), &text).await;
        let answer = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.status, 400, "{answer}");
        assert!(answer.contains(named), "{answer}");
    }
    let newer = with("zone", "a field of a newer version".into());
    assert_eq!(scene.send(POD_IP, Some(&scene.signed(&newer)), &newer).await.status, 200);
}

#[tokio::test]
async fn forged_registrations_of_one_source_are_limited_and_others_are_served() {
    let rates =
        RegistrationRates { failures: Rate { per_second: 1, burst: 10 }, ..RegistrationRates::default() };
    let scene = Scene::with(PushMode::On, rates);
    let text = serde_json::to_vec(&body(1, "ready")).unwrap();
    let mut statuses = BTreeMap::<u16, usize>::new();
    for _ in 0..1000 {
        let reply = scene.send("192.0.2.1", Some("Bearer forged"), &text).await;
        *statuses.entry(reply.status).or_default() += 1;
        assert_eq!(reply.retry_after, (reply.status == 429).then_some(1));
    }
    assert_eq!(statuses, BTreeMap::from([(401, 10), (429, 990)]));
    assert_eq!(scene.register(&body(1, "ready")).await.status, 200);
    scene.bench.clock.advance(Duration::from_secs(2));
    assert_eq!(scene.send("192.0.2.1", Some("Bearer forged"), &text).await.status, 401);
}

#[tokio::test]
async fn a_bad_pod_does_not_silence_known_neighbours_behind_its_address() {
    let rates =
        RegistrationRates { failures: Rate { per_second: 1, burst: 10 }, ..RegistrationRates::default() };
    let text = serde_json::to_vec(&body(1, "ready")).unwrap();
    let other = serde_json::to_vec(&RegistrationBody { uid: "uid-9".into(), ..body(1, "ready") }).unwrap();
    let token = format!("Bearer {}", *TOKEN);
    for (peer, by_token) in [("192.0.2.1", true), (POD_IP, false)] {
        let scene = Scene::with(PushMode::On, rates);
        let good = || if by_token { token.clone() } else { scene.signed(&text) };
        let status =
            async |authorization: &str, body: &[u8]| scene.send(peer, Some(authorization), body).await.status;
        assert_eq!(status(&good(), &text).await, 200);
        // The neighbour: forged tokens, and signatures that are wrong or of another pod.
        let wrong = scene.signed(&text).replace("nonce=0", "nonce=1");
        let forged: [(&str, &[u8]); 3] = [("Bearer forged", &text), (&wrong, &other), ("Basic eDp5", &text)];
        let mut checked = 0;
        for n in 0..300 {
            let (authorization, body) = forged[n % 3];
            checked += usize::from(status(authorization, body).await == 401);
        }
        assert_eq!(checked, 10, "the others are refused before they are checked");
        for _ in 0..20 {
            assert_eq!(status(&good(), &text).await, 200, "by token: {by_token}");
        }
        // What names a known pod may be forged too, and is limited.
        assert_eq!(status(&good(), &text).await, 429);
        // A pod that was never accepted waits for its neighbour.
        assert_eq!(status(&scene.signed(&other), &other).await, 429);
        scene.bench.clock.advance(Duration::from_secs(1));
        assert_eq!(status(&good(), &text).await, 200);
    }
}

/// A cluster that answers no review.
#[derive(Default)]
struct Silent(AtomicUsize);

impl TokenReviewer for Silent {
    fn review<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<PodIdentity, AuthError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn forged_tokens_are_limited_also_while_their_reviews_take_long() {
    let rates =
        RegistrationRates { failures: Rate { per_second: 1, burst: 10 }, ..RegistrationRates::default() };
    let reviewer = Arc::<Silent>::default();
    let check = TokenCheck::Review(Arc::clone(&reviewer) as _);
    let tokens = TokenAuthenticator::new(check, TokenSettings::default(), now);
    let scene = Arc::new(Scene::with_tokens(PushMode::On, rates, tokens));
    let (key, mut tasks) = (SigningKey::new("forged"), JoinSet::new());
    for n in 0..200 {
        let token = format!("Bearer {}", key.sign(&claims_of(&cart_1(), START + n)));
        let scene = Arc::clone(&scene);
        tasks.spawn(async move {
            let text = serde_json::to_vec(&body(1, "ready")).unwrap();
            scene.send("192.0.2.1", Some(&token), &text).await.status
        });
    }
    let statuses = tasks.join_all().await;
    let count = |status| statuses.iter().filter(|one| **one == status).count();
    assert_eq!((count(503), count(429)), (10, 190));
    assert_eq!(reviewer.0.load(Ordering::Relaxed), 10);
    assert_eq!(scene.register(&body(1, "ready")).await.status, 200, "another source");
}

#[tokio::test]
async fn pods_that_a_key_holder_invents_are_limited() {
    let rates =
        RegistrationRates { failures: Rate { per_second: 1, burst: 10 }, ..RegistrationRates::default() };
    let scene = Scene::with(PushMode::On, rates);
    let mut statuses = BTreeMap::<u16, usize>::new();
    for n in 0..100 {
        let uid = format!("invented-{n}");
        scene.grant(&uid, Err(ClaimError::Unavailable("it is not known yet".into())));
        let reply = scene.register(&RegistrationBody { uid, ..body(1, "ready") }).await;
        *statuses.entry(reply.status).or_default() += 1;
    }
    assert_eq!(statuses, BTreeMap::from([(503, 10), (429, 90)]));
}

#[tokio::test]
async fn a_service_has_a_bound_of_pods_that_no_slice_lists() {
    let scene = Scene::new();
    let pod = |n: usize| RegistrationBody {
        pod: format!("cart-{n}"),
        uid: format!("uid-{n}"),
        ips: vec![format!("10.2.{}.{}", n / 256, n % 256).parse().unwrap()],
        ..body(1, "ready")
    };
    for n in 1..=1001 {
        scene.grant(&format!("uid-{n}"), Ok(ClaimGrant::default()));
        let text = serde_json::to_vec(&pod(n)).unwrap();
        let peer = pod(n).ips[0].to_string();
        let reply = scene.send(&peer, Some(&scene.signed(&text)), &text).await;
        assert_eq!(reply.status, if n <= 1000 { 200 } else { 429 }, "{n}");
        assert_eq!(reply.retry_after.is_some(), n > 1000);
    }
    assert_eq!(scene.endpoints().len(), 1000);
}

#[tokio::test]
async fn the_services_in_metrics_are_bounded() {
    let scene = Scene::new();
    for n in 0..1100 {
        let body = RegistrationBody { service: format!("s{n}"), ..body(1, "ready") };
        scene.bench.registry.service(&format!("shop/s{n}").parse().unwrap());
        assert_eq!(scene.register(&body).await.status, 200);
    }
    assert_eq!(scene.attempts("_other", "ready", "accepted"), 100);
    assert_eq!(scene.counted().keys().filter(|series| series.starts_with("attempts")).count(), 1001);
}
