//! Tokens that are checked offline: what is accepted, and what is not.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use rouse_net::auth::{REPORT_AUDIENCE, TokenSettings};
use serde_json::{Value, json};

use super::*;
use rouse_testkit::token_issuer::{ISSUER, PublishedKeys, SigningKey, base64url, claims, pod};

#[tokio::test(start_paused = true)]
async fn a_token_of_every_allowed_algorithm_proves_its_pod() {
    for algorithm in [
        Algorithm::RS256,
        Algorithm::RS384,
        Algorithm::RS512,
        Algorithm::PS256,
        Algorithm::PS384,
        Algorithm::PS512,
        Algorithm::ES256,
        Algorithm::ES384,
        Algorithm::EdDSA,
    ] {
        let key = SigningKey::of("k1", algorithm);
        let tokens = PublishedKeys::new(&[&key]).authenticator(time_of_day);
        let token = key.token("cart-0");
        // The second time it is remembered.
        for _ in 0..2 {
            assert_eq!(tokens.authenticate(&token).await, Ok(pod("cart-0")), "{algorithm:?}");
        }
        // The same with a key that does not name its algorithm.
        let mut jwk = key.jwk();
        jwk.as_object_mut().unwrap().remove("alg");
        let published = PublishedKeys::new(&[]);
        published.publish_jwks(&[jwk]);
        assert_eq!(
            published.authenticator(time_of_day).authenticate(&token).await,
            Ok(pod("cart-0")),
            "{algorithm:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_of_registrations_reports_no_load_and_the_reverse() {
    let (key, mut settings) = (SigningKey::new("k1"), TokenSettings::default());
    settings.audience = REPORT_AUDIENCE.to_owned();
    let published = PublishedKeys::new(&[&key]);
    let (registers, reports) =
        (published.authenticator(time_of_day), published.authenticator_with(settings, time_of_day));
    let mut claims = claims("cart-0");
    let registration = key.sign(&claims);
    claims["aud"] = json!([REPORT_AUDIENCE]);
    let report = key.sign(&claims);
    assert_eq!(registers.authenticate(&registration).await, Ok(pod("cart-0")));
    assert_eq!(reports.authenticate(&report).await, Ok(pod("cart-0")));
    assert_refused(registers.authenticate(&report).await, "not for the audience rouse-register");
    assert_refused(reports.authenticate(&registration).await, "not for the audience rouse-report");
}

/// A token with one claim changed is refused for this reason; `null` removes the claim.
async fn check(claim: &str, value: Value, reason: &str) {
    let key = SigningKey::new("k1");
    let tokens = PublishedKeys::new(&[&key]).authenticator(time_of_day);
    let mut changed = claims("cart-0");
    *changed.pointer_mut(claim).unwrap_or_else(|| panic!("{claim}")) = value.clone();
    if value.is_null() {
        let (parent, name) = claim.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name);
    }
    let token = key.sign(&changed);
    for _ in 0..2 {
        match reason {
            "" => assert_eq!(tokens.authenticate(&token).await, Ok(pod("cart-0")), "{claim} {value}"),
            reason => assert_refused(tokens.authenticate(&token).await, reason),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn claims_that_do_not_fit_are_refused() {
    const MALFORMED: &str = "not a signed JWT of a ServiceAccount";
    for (claim, value, reason) in [
        ("/iss", json!("https://other.example"), "another issuer"),
        ("/iss", json!(format!("{ISSUER}/")), "another issuer"),
        ("/iss", json!([ISSUER]), MALFORMED),
        ("/iss", Value::Null, MALFORMED),
        ("/aud", json!("rouse-register"), ""),
        ("/aud", json!(["vault", "rouse-register"]), ""),
        ("/aud", json!(["rouse-report"]), "not for the audience rouse-register"),
        ("/aud", json!("https://kubernetes.default.svc"), "not for the audience"),
        ("/aud", json!([]), "not for the audience"),
        ("/aud", Value::Null, MALFORMED),
        ("/exp", json!(START - 29), ""),
        ("/exp", json!(START - 30), "has expired"),
        ("/exp", json!(0), "has expired"),
        ("/exp", json!("soon"), MALFORMED),
        ("/exp", json!(-1), MALFORMED),
        ("/exp", Value::Null, MALFORMED),
        ("/nbf", json!(START + 30), ""),
        ("/nbf", json!(START + 31), "not valid yet"),
        ("/nbf", json!("soon"), MALFORMED),
        ("/nbf", Value::Null, ""),
        ("/kubernetes.io", Value::Null, "not bound to a pod"),
        ("/kubernetes.io/namespace", Value::Null, "not bound to a pod"),
        ("/kubernetes.io/pod", Value::Null, "not bound to a pod"),
        ("/kubernetes.io/pod/name", json!(""), "not bound to a pod"),
        ("/kubernetes.io/pod/uid", json!(""), "not bound to a pod"),
        ("/kubernetes.io/pod/uid", Value::Null, "not bound to a pod"),
        ("/kubernetes.io/serviceaccount", Value::Null, "not bound to a pod"),
        ("/kubernetes.io/serviceaccount/name", json!(""), "not bound to a pod"),
    ] {
        check(claim, value, reason).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_signature_that_is_missing_or_wrong_is_refused() {
    let (key, stranger) = (SigningKey::new("k1"), SigningKey::new("k1"));
    let tokens = PublishedKeys::new(&[&key]).authenticator(time_of_day);
    let good = key.token("cart-0");
    let (message, signature) = good.rsplit_once('.').unwrap();
    let other = key.token("cart-1");
    let (other_message, _) = other.rsplit_once('.').unwrap();
    for (token, reason) in [
        (stranger.token("cart-0"), "signature is wrong"),
        (format!("{message}."), "signature is wrong"),
        (format!("{message}.!"), "signature is wrong"),
        (format!("{message}.{}", &signature[..signature.len() - 4]), "signature is wrong"),
        (format!("{other_message}.{signature}"), "signature is wrong"),
        (format!("{good}.more"), "not a signed JWT"),
        (message.to_owned(), "not a signed JWT"),
        (String::new(), "not a signed JWT"),
        ("..".to_owned(), "not a signed JWT"),
        ("a".repeat(9000), "more than 8192 bytes"),
    ] {
        assert_refused(tokens.authenticate(&token).await, reason);
    }
    assert_eq!(tokens.authenticate(&good).await, Ok(pod("cart-0")));
}

#[tokio::test(start_paused = true)]
async fn a_token_without_an_algorithm_is_refused() {
    let key = SigningKey::new("k1");
    let tokens = PublishedKeys::new(&[&key]).authenticator(time_of_day);
    let payload = base64url(claims("cart-0").to_string().as_bytes());
    for none in ["none", "None", "NONE", ""] {
        let header = base64url(json!({"alg": none, "typ": "JWT", "kid": "k1"}).to_string().as_bytes());
        for signature in ["", "AAAA"] {
            let token = format!("{header}.{payload}.{signature}");
            assert_refused(tokens.authenticate(&token).await, "not a signed JWT");
        }
    }
    let header = base64url(json!({"typ": "JWT", "kid": "k1"}).to_string().as_bytes());
    assert_refused(tokens.authenticate(&format!("{header}.{payload}.")).await, "not a signed JWT");
    // The helper makes what a decoder reads: with the right header and signature it is the token itself.
    let good = key.sign(&claims("cart-0"));
    assert_eq!(good.split('.').nth(1).unwrap(), payload);
}

#[tokio::test(start_paused = true)]
async fn a_public_key_is_never_taken_for_a_shared_secret() {
    let key = SigningKey::of("k1", Algorithm::RS256);
    let published = PublishedKeys::new(&[&key]);
    let mut unnamed = key.jwk();
    unnamed.as_object_mut().unwrap().remove("alg");
    for jwk in [key.jwk(), unnamed] {
        published.publish_jwks(std::slice::from_ref(&jwk));
        let tokens = published.authenticator(time_of_day);
        assert_eq!(tokens.authenticate(&key.token("cart-0")).await, Ok(pod("cart-0")));
        let (modulus, whole) = (jwk["n"].as_str().unwrap(), jwk.to_string());
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let mut header = Header::new(algorithm);
            header.kid = Some("k1".to_owned());
            let secrets = [
                EncodingKey::from_secret(modulus.as_bytes()),
                EncodingKey::from_secret(whole.as_bytes()),
                EncodingKey::from_secret(b""),
            ];
            for secret in secrets {
                let token = jsonwebtoken::encode(&header, &claims("cart-0"), &secret).unwrap();
                assert_refused(tokens.authenticate(&token).await, "algorithm is not allowed for its key");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_shared_secret_or_an_unfit_key_in_the_key_set_is_not_used() {
    let key = SigningKey::new("k1");
    let with = |name: &str, value: Value| {
        let mut jwk = key.jwk();
        jwk[name] = value;
        jwk
    };
    let secret = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";
    for jwk in [
        json!({"kty": "oct", "kid": "k1", "alg": "HS256", "k": secret}),
        json!({"kty": "oct", "kid": "k1", "k": secret}),
        with("use", json!("enc")),
        with("key_ops", json!(["sign"])),
        with("alg", json!("RS256")),
        with("alg", json!("HS256")),
        with("alg", json!("ES384")),
        with("alg", json!("none")),
        with("crv", json!("P-384")),
        with("kid", Value::Null),
        with("kid", json!(7)),
        json!("no key"),
    ] {
        let published = PublishedKeys::new(&[]);
        // Another key makes the set usable.
        published.publish_jwks(&[jwk.clone(), SigningKey::new("k2").jwk()]);
        let answer = published.authenticator(time_of_day).authenticate(&key.token("cart-0")).await;
        assert!(matches!(answer, Err(AuthError::Refused(_))), "{jwk}: {answer:?}");
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("k1".to_owned());
        let forged = EncodingKey::from_base64_secret(secret).unwrap();
        let forged = jsonwebtoken::encode(&header, &claims("cart-0"), &forged).unwrap();
        let answer = published.authenticator(time_of_day).authenticate(&forged).await;
        assert!(matches!(answer, Err(AuthError::Refused(_))), "{jwk}: {answer:?}");
    }
    let published = PublishedKeys::new(&[]);
    published.publish_jwks(&[with("key_ops", json!(["verify"]))]);
    assert_eq!(
        published.authenticator(time_of_day).authenticate(&key.token("cart-0")).await,
        Ok(pod("cart-0"))
    );
}

#[tokio::test(start_paused = true)]
async fn an_rsa_key_for_one_algorithm_is_not_used_for_another() {
    let (rs256, ps256) = (SigningKey::of("k1", Algorithm::RS256), SigningKey::of("k1", Algorithm::PS256));
    let tokens = PublishedKeys::new(&[&rs256]).authenticator(time_of_day);
    assert_refused(tokens.authenticate(&ps256.token("cart-0")).await, "algorithm is not allowed for its key");
    assert_eq!(tokens.authenticate(&rs256.token("cart-0")).await, Ok(pod("cart-0")));
}

#[tokio::test(start_paused = true)]
async fn headers_that_need_more_than_we_know_are_refused() {
    let key = SigningKey::new("k1");
    let tokens = PublishedKeys::new(&[&key]).authenticator(time_of_day);
    let critical = key.sign_with(&claims("cart-0"), |header| header.crit = Some(vec!["b64".to_owned()]));
    assert_refused(tokens.authenticate(&critical).await, "critical header fields");
    let nameless = key.sign_with(&claims("cart-0"), |header| header.kid = None);
    assert_refused(tokens.authenticate(&nameless).await, "names no key");
    // A key that the token brings along is not used.
    let stranger = SigningKey::new("k9");
    let jwk = serde_json::from_value(stranger.jwk()).unwrap();
    let own = stranger.sign_with(&claims("cart-0"), |header| header.jwk = Some(jwk));
    assert_refused(tokens.authenticate(&own).await, "unknown key");
}

#[tokio::test(start_paused = true)]
async fn a_remembered_token_expires_and_so_does_the_rest_of_the_memory() {
    let key = SigningKey::new("k1");
    let published = PublishedKeys::new(&[&key]);
    let tokens = published.authenticator(time_of_day);
    let mut soon = claims("cart-0");
    soon["exp"] = json!(START + 60);
    let token = key.sign(&soon);
    assert_eq!(tokens.authenticate(&token).await, Ok(pod("cart-0")));
    pass(Duration::from_secs(89)).await;
    assert_eq!(tokens.authenticate(&token).await, Ok(pod("cart-0")), "within the leeway");
    pass(Duration::from_secs(1)).await;
    assert_refused(tokens.authenticate(&token).await, "has expired");
    assert_eq!(published.fetches(), 1);
}

#[tokio::test(start_paused = true)]
async fn more_tokens_than_are_remembered_are_all_accepted() {
    let key = SigningKey::new("k1");
    let settings = TokenSettings { remembered: 2, ..TokenSettings::default() };
    let tokens = PublishedKeys::new(&[&key]).authenticator_with(settings, time_of_day);
    let names = ["a", "b", "c", "d"];
    for token in names.map(|name| (name, key.token(name))).iter().cycle().take(12) {
        assert_eq!(tokens.authenticate(&token.1).await, Ok(pod(token.0)));
    }
}
