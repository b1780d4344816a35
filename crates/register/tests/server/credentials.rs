//! Every kind of bad credential, through the whole server: the status, that nothing changes, both metrics by value, and that
//! no credential is logged.

use std::collections::BTreeMap;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rouse_core::endpoint::PodUid;
use rouse_net::auth::{AuthError, ClaimError, ClaimGrant, PodIdentity, PushMode, Sender};
use rouse_register::server::{RegistrationRates, RegistrationRequest};
use rouse_register::wire::RegistrationBody;
use rouse_testkit::token_issuer::{PublishedKeys, START, SigningKey, base64url, claims_of};
use serde_json::{Value, json};

use crate::harness::{POD_IP, SECRET, Scene, body, cart_1, now};
use crate::logs::Lines;

/// A request that must be refused.
struct Bad {
    what: &'static str,
    authorization: Option<String>,
    certificate: Option<Result<Sender, AuthError>>,
    body: RegistrationBody,
    /// What is added to the body after it was signed.
    tail: &'static str,
    secure: bool,
    peer: &'static str,
    status: u16,
}

/// The registration that all cases try.
fn wanted() -> RegistrationBody {
    body(9, "not-ready")
}

fn bad(what: &'static str, authorization: String) -> Bad {
    Bad {
        what,
        authorization: Some(authorization),
        certificate: None,
        body: wanted(),
        tail: "",
        secure: true,
        peer: POD_IP,
        status: 401,
    }
}

/// A token of `cart-1` with one claim changed.
fn token(key: &SigningKey, claim: &str, value: Value) -> String {
    let mut claims = claims_of(&cart_1(), START);
    *claims.pointer_mut(claim).unwrap() = value;
    format!("Bearer {}", key.sign(&claims))
}

/// Tokens that are not good for anything.
fn bad_tokens(key: &SigningKey) -> Vec<Bad> {
    let claims = claims_of(&cart_1(), START);
    let payload = base64url(claims.to_string().as_bytes());
    let none = base64url(json!({"alg": "none", "typ": "JWT", "kid": key.id}).to_string().as_bytes());
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some(key.id.clone());
    let modulus = EncodingKey::from_secret(key.jwk()["x"].as_str().unwrap().as_bytes());
    let confused = jsonwebtoken::encode(&header, &claims, &modulus).unwrap();
    let (good, other) = (key.sign(&claims), key.sign(&claims_of(&cart_1(), START + 1)));
    let (message, _) = good.rsplit_once('.').unwrap();
    let (_, signature) = other.rsplit_once('.').unwrap();
    let stranger = SigningKey::new(&key.id).sign(&claims);
    vec![
        bad("an empty token", "Bearer ".into()),
        bad("a token that is no JWT", "Bearer nonsense".into()),
        bad("an expired token", token(key, "/exp", json!(START - 30))),
        bad("a token that is not valid yet", token(key, "/nbf", json!(START + 31))),
        bad("another audience", token(key, "/aud", json!(["rouse-report"]))),
        bad("another issuer", token(key, "/iss", json!("https://other.example"))),
        bad("a token without a pod", token(key, "/kubernetes.io/pod/uid", json!(""))),
        bad("alg=none", format!("Bearer {none}.{payload}.")),
        bad("the public key as a shared secret", format!("Bearer {confused}")),
        bad("the key of another issuer", format!("Bearer {stranger}")),
        bad("another signature", format!("Bearer {message}.{signature}")),
        bad("an unknown key", format!("Bearer {}", SigningKey::new("k9").sign(&claims))),
        Bad { secure: false, ..bad("a good token in plain text", format!("Bearer {good}")) },
    ]
}

/// Good credentials that are not for this registration.
fn of_others(key: &SigningKey, scene: &Scene) -> Vec<Bad> {
    let denied = |what, pod: PodIdentity| Bad {
        status: 403,
        ..bad(what, format!("Bearer {}", key.sign(&claims_of(&pod, START))))
    };
    let account = |namespace: &str, name: &str| {
        Some(Ok(Sender::ServiceAccount { namespace: namespace.into(), name: name.into() }))
    };
    let certificate = |what, certificate, peer| Bad {
        authorization: None,
        certificate,
        peer,
        status: 403,
        ..bad(what, String::new())
    };
    let signed = |body: &RegistrationBody| scene.signed(&serde_json::to_vec(body).unwrap());
    let foreign = RegistrationBody { namespace: "bank".into(), ..wanted() };
    vec![
        denied("the token of another pod", PodIdentity { pod: "cart-2".into(), ..cart_1() }),
        denied("the token of another UID", PodIdentity { uid: PodUid::new("uid-2"), ..cart_1() }),
        denied("the token of another namespace", PodIdentity { namespace: "bank".into(), ..cart_1() }),
        Bad { status: 403, body: foreign.clone(), ..bad("a key of another namespace", signed(&foreign)) },
        Bad {
            status: 403,
            peer: "10.0.0.2",
            ..bad("a key of the namespace, from another address", signed(&wanted()))
        },
        certificate("a certificate of another namespace", account("bank", "cart"), POD_IP),
        certificate("a certificate from another address", account("shop", "cart"), "10.0.0.2"),
        certificate("a certificate of another ServiceAccount", account("shop", "till"), POD_IP),
    ]
}

/// Signatures that are not good for anything.
fn bad_signatures(scene: &Scene) -> Vec<Bad> {
    let text = serde_json::to_vec(&wanted()).unwrap();
    let good = scene.signed(&text);
    let wrong = if good.ends_with('0') { "1" } else { "0" };
    vec![
        Bad { authorization: None, ..bad("no credential", String::new()) },
        bad("another scheme", "Basic Y2FydDpzZWNyZXQ=".into()),
        bad("another signature", format!("{}{wrong}", &good[..good.len() - 1])),
        bad("an unknown key id", good.replace("key=one", "key=two")),
        bad("another nonce", good.replace("nonce=0", "nonce=1")),
        bad("a clock that is 31 s late", scene.signed_at(START - 31, &text)),
        bad("a clock that is 31 s early", scene.signed_at(START + 31, &text)),
        Bad { tail: " ", ..bad("a changed body", good) },
        Bad {
            authorization: None,
            certificate: Some(Err(AuthError::Refused("the certificate has no name".into()))),
            ..bad("a certificate without a name", String::new())
        },
    ]
}

/// Sends the request. Checks the status, the snapshot and both metrics. Returns the secret parts of its credential.
async fn is_refused(scene: &Scene, bad: &Bad) -> Vec<String> {
    let mut text = serde_json::to_vec(&bad.body).unwrap();
    text.extend_from_slice(bad.tail.as_bytes());
    let before = (scene.endpoints(), scene.generation(), scene.counted());
    let request = RegistrationRequest {
        peer: bad.peer.parse().unwrap(),
        secure: bad.secure,
        certificate: bad.certificate.as_ref(),
        authorization: bad.authorization.as_deref().map(str::as_bytes),
        body: &text,
    };
    let reply = scene.server.register(&request).await;
    let answer = String::from_utf8(reply.body).unwrap();
    assert_eq!(reply.status, bad.status, "{}: {answer}", bad.what);
    assert_eq!(
        (scene.endpoints(), scene.generation()),
        (before.0, before.1),
        "{} changed something",
        bad.what
    );
    let (service, event, result) = match bad.status {
        401 => ("_other", "unknown", "unauthenticated"),
        // A credential of another namespace gives no label to a service, also if the service exists.
        _ if bad.body.namespace == "bank" || bad.what.contains("another namespace") => {
            ("_other", "not-ready", "denied")
        }
        _ => ("shop/cart", "not-ready", "denied"),
    };
    let mut expected: BTreeMap<String, u64> = before.2;
    let labels = format!("event_type=\"{event}\",result=\"{result}\"");
    for series in [
        format!("attempts_total{{service=\"{service}\",{labels}}}"),
        format!("duration_seconds_count{{{labels}}}"),
    ] {
        *expected.entry(series).or_default() += 1;
    }
    assert_eq!(scene.counted(), expected, "{}", bad.what);
    let credential = bad.authorization.clone().unwrap_or_default();
    let secrets: Vec<String> = match credential.split_once("signature=") {
        Some((_, signature)) => vec![signature.to_owned()],
        None => credential.split(['.', ' ']).skip(1).map(str::to_owned).collect(),
    };
    assert!(secrets.iter().all(|secret| secret.len() < 8 || !answer.contains(secret)), "{answer}");
    secrets
}

#[tokio::test]
async fn no_bad_credential_changes_anything_or_is_logged() {
    let key = SigningKey::new("k1");
    let tokens = PublishedKeys::new(&[&key]).authenticator(now);
    let scene = Scene::with_tokens(PushMode::On, RegistrationRates::default(), tokens);
    scene.answered(&body(1, "ready")).await;
    let (lines, logged) = Lines::collect();
    let mut secrets = vec![String::from_utf8(SECRET.to_vec()).unwrap()];
    let unowned = |what: &str| what.contains("ServiceAccount");
    for case in bad_tokens(&key).iter().chain(&of_others(&key, &scene)).chain(&bad_signatures(&scene)) {
        // Ownership knows the ServiceAccount of the pod; the kube crate tests that it compares it.
        let denied = Err(ClaimError::Denied("the pod has the ServiceAccount \"cart\"".into()));
        let grant = Ok(ClaimGrant::default());
        scene.grant("uid-1", if unowned(case.what) { denied } else { grant });
        secrets.extend(is_refused(&scene, case).await);
    }
    scene.grant("uid-1", Ok(ClaimGrant::default()));
    // The same registration with good credentials: by token, by key, and the same signed request a second time.
    let text = serde_json::to_vec(&wanted()).unwrap();
    let good = format!("Bearer {}", key.sign(&claims_of(&cart_1(), START)));
    assert_eq!(scene.send("192.0.2.1", Some(&good), &text).await.status, 200);
    let signed = scene.signed(&text);
    assert_eq!(scene.send(POD_IP, Some(&signed), &text).await.status, 200);
    secrets.extend(is_refused(&scene, &bad("a replayed request", signed)).await);
    assert_eq!(scene.generation(), 2, "ready, and then not-ready once");
    drop(logged);
    let log = lines.text();
    assert!(log.lines().count() > 25, "{log}");
    secrets.retain(|secret| secret.len() >= 8);
    assert!(secrets.len() > 40, "{secrets:?}");
    for secret in secrets {
        assert!(!log.contains(&secret), "{secret} in {log}");
    }
}
