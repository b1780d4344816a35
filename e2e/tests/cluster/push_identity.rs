//! Registrations with real tokens of real pods, checked offline and by the API server: a pod registers itself, and nothing
//! else. What is refused changes nothing, is counted, and leaves no token in the log.

use std::collections::BTreeMap;
use std::fs;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rouse_e2e::admin::Endpoint;
use serde_json::{Value, json};

use crate::app::App;
use crate::harness::{Case, trial};
use crate::identity;
use crate::node::Node;
use crate::push::{self, BOOT, PushGateway, Registration, content};
use crate::test_namespace::{POD, Pod, TestNamespace};

pub(crate) const TRIALS: &[Case] = &[
    trial!(a_pod_registers_itself_and_nothing_else),
    trial!(a_token_that_is_not_good_now_is_refused).on_our_node(),
    trial!(a_relabelled_pod_leaves_at_once),
];

/// The API server does not say more about a token.
const NOT_ACCEPTED: &str = "the API server does not accept the token";
const MODES: [&str; 2] = ["jwks", "tokenreview"];

/// A registration that must be refused.
struct Attempt {
    what: &'static str,
    token: Option<String>,
    body: Value,
    /// The status, the error, and words of the reason.
    refusal: (u16, &'static str, &'static str),
}

impl Attempt {
    /// Whether its body was read, so that its event is known.
    fn is_read(&self) -> bool {
        self.refusal.1 == "denied"
    }
}

/// A gateway for each way of checking tokens.
async fn gateways(space: &TestNamespace) -> Vec<PushGateway> {
    let launch = space.launch().await;
    identity::may_review_tokens(space).await;
    let mut all = Vec::new();
    for mode in MODES {
        let launch = launch.clone().flag("--register-token-check", mode);
        all.push(PushGateway::launch(space, launch).await);
    }
    all
}

/// All endpoints of all services.
async fn everything(gateway: &PushGateway) -> BTreeMap<String, Vec<Endpoint>> {
    let services = gateway.gateway.admin.services().await;
    services.into_iter().map(|service| (service.service, service.endpoints)).collect()
}

/// Each attempt is refused for its reason, changes nothing, is counted, and its token is not in the log.
async fn are_refused(gateway: &PushGateway, mode: &str, attempts: &[Attempt]) {
    let mut counts: BTreeMap<(String, &str, &str), u64> = BTreeMap::new();
    for attempt in attempts {
        let before = everything(gateway).await;
        let answer = gateway.post(attempt.token.as_deref(), attempt.body.to_string()).await;
        let said = answer.json();
        let (status, error, reason) = attempt.refusal;
        let what = format!("{mode}, {}: {said}", attempt.what);
        assert_eq!((answer.status.as_u16(), &said["error"]), (status, &json!(error)), "{what}");
        assert!(said["reason"].as_str().unwrap().contains(reason), "{what}");
        assert_eq!(everything(gateway).await, before, "{what}: nothing changes");
        let id = format!(
            "{}/{}",
            attempt.body["namespace"].as_str().unwrap(),
            attempt.body["service"].as_str().unwrap()
        );
        let known = attempt.is_read() && before.contains_key(&id);
        let service = if known { id } else { "_other".to_owned() };
        let event = if attempt.is_read() { "draining" } else { "unknown" };
        *counts.entry((service, event, error)).or_default() += 1;
    }
    let mut durations: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for ((service, event, result), count) in &counts {
        let labels = [("service", service.as_str()), ("event_type", event), ("result", result)];
        assert_eq!(gateway.attempts(&labels).await, *count, "{mode}: {labels:?}");
        *durations.entry((event, result)).or_default() += count;
    }
    for ((event, result), count) in durations {
        let labels = [("event_type", event), ("result", result)];
        assert_eq!(gateway.durations(&labels).await, count, "{mode}: {labels:?}");
    }
    let all = u64::try_from(attempts.len()).unwrap();
    assert_eq!(gateway.attempts(&[]).await, all, "{mode}: nothing else was counted");
    let log = gateway.gateway.output.lines().join("\n");
    for token in attempts.iter().filter_map(|attempt| attempt.token.as_deref()) {
        let signature = token.rsplit('.').next().filter(|signature| !signature.is_empty());
        assert!(signature.is_none_or(|signature| !log.contains(signature)), "{mode}: a token is in the log");
    }
}

/// The registration of a pod is accepted once, renewed and then stale; its state follows, and all of it is counted.
async fn is_accepted(gateway: &PushGateway, space: &TestNamespace, pod: &Pod) {
    let mut registration = Registration::of(space, "shop", pod).await;
    let answer = gateway.tells(&registration, "accepted").await;
    assert_eq!(
        (&answer["boot"], &answer["sequence"], &answer["lease_seconds"]),
        (&json!(BOOT), &json!(0), &json!(60))
    );
    gateway.tells(&registration, "renewed").await;
    let old = registration.clone();
    gateway.tells(registration.next("not-ready"), "accepted").await;
    assert_ne!(gateway.state(space, "shop", pod).await.map(|(state, _)| state).as_deref(), Some("Ready"));
    let stale = gateway.tells(&old, "stale").await;
    assert_eq!(stale["sequence"], 1);
    gateway.tells(registration.next("ready"), "accepted").await;
    assert_eq!(gateway.state(space, "shop", pod).await.map(|(state, _)| state).as_deref(), Some("Ready"));
    let service = format!("{}/shop", space.name());
    for (event, result, count) in [
        ("ready", "accepted", 2),
        ("ready", "renewed", 1),
        ("ready", "stale", 1),
        ("not-ready", "accepted", 1),
    ] {
        let labels = [("service", service.as_str()), ("event_type", event), ("result", result)];
        assert_eq!(gateway.attempts(&labels).await, count, "{labels:?}");
        assert_eq!(gateway.durations(&labels[1..]).await, count, "{labels:?}");
    }
}

/// What a compromised pod may try with its own token, and with others.
async fn attempts(space: &TestNamespace, mine: &Pod, victim: &Pod, on_host: &Pod) -> Vec<Attempt> {
    const UNAUTHENTICATED: (u16, &str) = (401, "unauthenticated");
    const DENIED: (u16, &str) = (403, "denied");
    let token = push::token(space, mine).await;
    let honest = |change: Value| {
        let mut body = content(space, "shop", mine);
        body["event"] = json!("draining");
        crate::app::merge(&mut body, &change);
        body
    };
    let as_me = |what, change: Value, (status, error): (u16, &'static str), reason| Attempt {
        what,
        token: Some(token.clone()),
        body: honest(change),
        refusal: (status, error, reason),
    };
    let with = |what, token: Option<String>, reason| Attempt {
        what,
        token,
        body: honest(json!({})),
        refusal: (UNAUTHENTICATED.0, UNAUTHENTICATED.1, reason),
    };
    let of_victim = json!({ "pod": victim.name, "uid": victim.uid, "ips": [victim.ip] });
    let other_token = "the token belongs to another pod than the body names";
    let host_body = json!({
        "service": "host", "pod": on_host.name, "uid": on_host.uid, "ips": [on_host.ip], "ports": { "http": 18099 },
    });
    vec![
        with("no token", None, "no credential"),
        with("no JWT", Some("this-is-no-token".to_owned()), "not a signed JWT"),
        with("another audience", Some(push::token_for(space, Some(mine), "rouse-report").await), "audience"),
        with(
            "not bound to a pod",
            Some(push::token_for(space, None, push::AUDIENCE).await),
            "not bound to a pod",
        ),
        as_me("another pod", of_victim, DENIED, other_token),
        Attempt {
            token: Some(push::token(space, victim).await),
            ..as_me("another pod's token", json!({}), DENIED, other_token)
        },
        as_me("another UID", json!({ "uid": victim.uid }), DENIED, other_token),
        as_me("another namespace", json!({ "namespace": "default" }), DENIED, other_token),
        as_me("another service", json!({ "service": "other" }), DENIED, "do not match the selector"),
        as_me(
            "a service without a selector",
            json!({ "service": "manual" }),
            DENIED,
            "does not say which pods",
        ),
        as_me("another port", json!({ "ports": { "http": 8081 } }), DENIED, "the ports are not those"),
        as_me("one port more", json!({ "ports": { "more": 8081 } }), DENIED, "the ports are not those"),
        as_me("another IP", json!({ "ips": [victim.ip] }), DENIED, "is not an address of pod"),
        as_me("one IP more", json!({ "ips": [mine.ip, victim.ip] }), DENIED, "is not an address of pod"),
        Attempt {
            token: Some(push::token(space, on_host).await),
            ..as_me("a pod on the host's network", host_body, DENIED, "hostNetwork")
        },
        as_me("an unknown event", json!({ "event": "sleepy" }), (400, "malformed"), "sleepy"),
        as_me("a large body", json!({ "pod": "x".repeat(9_000) }), (413, "too-large"), "longer than"),
    ]
}

async fn a_pod_registers_itself_and_nothing_else(space: TestNamespace) {
    space.serve(&App::new("shop").replicas(2)).await;
    space.serve(&App::new("other").replicas(1)).await;
    let network = json!({ "spec": { "template": { "spec": { "hostNetwork": true } } } });
    space
        .serve(&App::new("host").replicas(1).container_ports(&[("http", 18099)]).deployment_with(network))
        .await;
    let mut manual = App::new("shop").service_with(json!({ "spec": { "selector": null } })).service();
    manual["metadata"]["name"] = json!("manual");
    space.apply(manual).await;
    let gateways = gateways(&space).await;
    let pods = space.ready_pods("shop", 2).await;
    let [mine, victim] = &pods[..] else { panic!("two pods") };
    let [on_host] = &space.ready_pods("host", 1).await[..] else { panic!("one pod") };
    space.ready_pods("other", 1).await;
    let attempts = attempts(&space, mine, victim, on_host).await;
    for (gateway, mode) in gateways.into_iter().zip(MODES) {
        for (service, pod) in [("shop", mine), ("shop", victim), ("host", on_host)] {
            gateway.until(&space, service, pod, Some("Ready")).await;
        }
        are_refused(&gateway, mode, &attempts).await;
        let before = everything(&gateway).await;
        let mut plain = Registration::of(&space, "shop", mine).await;
        let answer = push::plaintext_answer(&gateway, plain.next("draining")).await;
        assert!(!answer.contains("HTTP/"), "{mode}: an answer without TLS: {answer}");
        assert_eq!(everything(&gateway).await, before, "{mode}: nothing changes without TLS");
        is_accepted(&gateway, &space, mine).await;
        gateway.stop().await;
    }
}

/// A real token with other claims or another signature.
struct Forger {
    claims: Value,
    header: Header,
    key: EncodingKey,
    genuine: String,
}

impl Forger {
    /// Has the key of the cluster, so that only the claims are wrong.
    async fn of(space: &TestNamespace, pod: &Pod) -> Self {
        let genuine = push::token(space, pod).await;
        let token = jsonwebtoken::dangerous::insecure_decode::<Value>(&genuine).expect("a token");
        let mut openssl = tokio::process::Command::new("openssl");
        openssl.args(["rsa", "-traditional", "-outform", "DER", "-in"]);
        let der = openssl.arg(Node::ours().folder().join("state/pki/service-accounts.key")).output().await;
        let key = EncodingKey::from_rsa_der(&der.expect("the cluster's key").stdout);
        Self { claims: token.claims, header: token.header, key, genuine }
    }

    /// With other claims.
    fn claiming(&self, change: &Value) -> String {
        let mut claims = self.claims.clone();
        crate::app::merge(&mut claims, change);
        jsonwebtoken::encode(&self.header, &claims, &self.key).expect("a token")
    }

    /// Signed with the public key as if it were a secret.
    fn confused(&self) -> String {
        let public =
            fs::read(Node::ours().folder().join("state/pki/service-accounts.pub")).expect("the public key");
        let header = Header { alg: Algorithm::HS256, ..self.header.clone() };
        jsonwebtoken::encode(&header, &self.claims, &EncodingKey::from_secret(&public)).expect("a token")
    }

    /// Without a signature: `{"alg":"none"}`.
    fn unsigned(&self) -> String {
        let claims = self.genuine.split('.').nth(1).expect("claims");
        format!("eyJhbGciOiJub25lIn0.{claims}.")
    }

    /// With the claims of one token and the signature of another.
    fn mixed(&self, change: &Value) -> String {
        let (message, signature) = (self.claiming(change), self.genuine.rsplit('.').next().unwrap());
        format!("{}.{signature}", message.rsplit_once('.').unwrap().0)
    }
}

async fn a_token_that_is_not_good_now_is_refused(space: TestNamespace) {
    space.serve(&App::new("shop").replicas(2)).await;
    let gateways = gateways(&space).await;
    let pods = space.ready_pods("shop", 2).await;
    let [mine, victim] = &pods[..] else { panic!("two pods") };
    let forger = Forger::of(&space, mine).await;
    let now = forger.claims["iat"].as_u64().expect("the time of its issue");
    let (past, future) = (now - 7_200, now + 7_200);
    let bound_to_victim = json!({ "kubernetes.io": { "pod": { "name": victim.name, "uid": victim.uid } } });
    let refusals =
        |jwks: &'static str, review: &'static str| BTreeMap::from([("jwks", jwks), ("tokenreview", review)]);
    let cases = [
        (
            "expired",
            forger.claiming(&json!({ "exp": past + 600, "iat": past, "nbf": past })),
            refusals("expired", "expired"),
        ),
        (
            "not valid yet",
            forger.claiming(&json!({ "nbf": future })),
            refusals("not valid yet", "not valid yet"),
        ),
        (
            "another issuer",
            forger.claiming(&json!({ "iss": "https://issuer.example" })),
            refusals("another issuer", NOT_ACCEPTED),
        ),
        ("no signature", forger.unsigned(), refusals("not a signed JWT", "not a signed JWT")),
        (
            "the signature of another",
            forger.mixed(&bound_to_victim),
            refusals("signature is wrong", NOT_ACCEPTED),
        ),
        ("the public key as a secret", forger.confused(), refusals("algorithm", NOT_ACCEPTED)),
    ];
    for (gateway, mode) in gateways.into_iter().zip(MODES) {
        gateway.until(&space, "shop", mine, Some("Ready")).await;
        gateway.until(&space, "shop", victim, Some("Ready")).await;
        let attempts: Vec<Attempt> = cases
            .iter()
            .map(|(what, token, reasons)| {
                let mut body =
                    content(&space, "shop", if *what == "the signature of another" { victim } else { mine });
                body["event"] = json!("draining");
                Attempt {
                    what,
                    token: Some(token.clone()),
                    body,
                    refusal: (401, "unauthenticated", reasons[mode]),
                }
            })
            .collect();
        are_refused(&gateway, mode, &attempts).await;
        // The forger can sign: with good claims, the same key makes a good token.
        let good = forger.claiming(&json!({}));
        let answer = gateway.post(Some(&good), content(&space, "shop", mine).to_string()).await;
        assert_eq!(answer.status, 200, "{mode}: {}", answer.text());
        gateway.stop().await;
    }
}

async fn a_relabelled_pod_leaves_at_once(space: TestNamespace) {
    // No slice lists the pod, so only the push makes it ready.
    let app = push::without_slices(App::new("shop"));
    space.serve(&app).await;
    let gateway = PushGateway::start(&space).await;
    let pod = push::lone_pod(&space, &app, "shop-0").await;
    let registration = Registration::of(&space, "shop", &pod).await;
    gateway.tells(&registration, "accepted").await;
    assert_eq!(gateway.state(&space, "shop", &pod).await, Some(("Ready".to_owned(), "push".to_owned())));

    space.patch(POD, &pod.name, json!({ "metadata": { "labels": { "app": "other" } } })).await;
    gateway.until(&space, "shop", &pod, None).await;
    let answer = gateway.post(Some(&push::token(&space, &pod).await), registration.body.to_string()).await;
    assert_eq!(answer.status, 403, "{}", answer.text());
    assert_eq!(gateway.state(&space, "shop", &pod).await, None);

    space.patch(POD, &pod.name, json!({ "metadata": { "labels": { "app": "shop" } } })).await;
    rouse_e2e::wait::patiently("the pod to be allowed again", async || {
        let answer =
            gateway.post(Some(&push::token(&space, &pod).await), registration.body.to_string()).await;
        (answer.status == 200).then_some(())
    })
    .await;
    gateway.until(&space, "shop", &pod, Some("Ready")).await;
    gateway.stop().await;
}
