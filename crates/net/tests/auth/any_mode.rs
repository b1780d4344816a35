//! All modes together: which credential is checked how, and that no credential is ever printed.

use std::sync::Arc;

use proptest::prelude::*;
use rouse_net::auth::{
    Authenticators, CertificateAuthenticator, KeyScope, Sender, SharedKey, SharedKeys, parse_hmac_credential,
};

use super::*;
use rouse_testkit::token_issuer::{PublishedKeys, SigningKey, pod};

const SECRET: &[u8] = b"a-secret-that-must-not-be-shown-";

fn shared_key() -> SharedKey {
    SharedKey::new("one", SECRET, KeyScope::All).unwrap()
}

fn shared_keys() -> Arc<SharedKeys> {
    Arc::new(SharedKeys::fixed(vec![shared_key()], time_of_day))
}

fn everything(key: &SigningKey) -> Authenticators {
    Authenticators::default()
        .with_tokens(PublishedKeys::new(&[key]).authenticator(time_of_day))
        .with_shared_keys(shared_keys())
        .with_certificates(CertificateAuthenticator::new("cluster.local"))
}

#[tokio::test(start_paused = true)]
async fn the_scheme_of_the_credential_selects_who_decides() {
    let key = SigningKey::new("k1");
    let gateway = everything(&key);
    let signature = shared_key().sign("POST", "/v1/registrations", b"{}", START, [1; 16]);
    let again = shared_key().sign("POST", "/v1/registrations", b"{}", START, [2; 16]);
    let holder = Sender::KeyHolder { namespaces: KeyScope::All };
    for (authorization, sender) in [
        (format!("Bearer {}", key.token("cart-0")), Sender::Pod(pod("cart-0"))),
        (format!("bearer  {} ", key.token("cart-0")), Sender::Pod(pod("cart-0"))),
        (signature, holder.clone()),
        (again.replace("Rouse-HMAC", "rouse-hmac"), holder),
    ] {
        assert_eq!(gateway.authenticate(&request(Some(&authorization))).await, Ok(sender));
    }
    for authorization in ["Basic YTpi", "Bearer", "Bearer ", "", "Bearer\tx", "Rouse-HMAC"] {
        let answer = gateway.authenticate(&request(Some(authorization))).await;
        assert!(matches!(answer, Err(AuthError::Refused(_))), "{authorization}: {answer:?}");
    }
    // A bad credential does not become good because the connection has a certificate too.
    let account = Ok(Sender::ServiceAccount { namespace: "shop".to_owned(), name: "cart".to_owned() });
    let both = CredentialRequest { certificate: Some(&account), ..request(Some("Bearer x")) };
    assert_refused(gateway.authenticate(&both).await, "not a signed JWT");
}

#[tokio::test(start_paused = true)]
async fn a_token_on_a_connection_without_tls_is_refused_even_if_it_is_known() {
    let key = SigningKey::new("k1");
    let gateway = everything(&key);
    let authorization = format!("Bearer {}", key.token("cart-0"));
    let plain = CredentialRequest { secure: false, ..request(Some(&authorization)) };
    assert_refused(gateway.authenticate(&plain).await, "without TLS");
    assert!(gateway.authenticate(&request(Some(&authorization))).await.is_ok());
    assert_refused(gateway.authenticate(&plain).await, "without TLS");
}

#[tokio::test(start_paused = true)]
async fn a_mode_that_is_off_is_refused_with_the_ones_that_are_on() {
    let key = SigningKey::new("k1");
    let token = format!("Bearer {}", key.token("cart-0"));
    let signature = shared_key().sign("POST", "/v1/registrations", b"{}", START, [1; 16]);
    let only_keys = Authenticators::default().with_shared_keys(shared_keys());
    assert_refused(
        only_keys.authenticate(&request(Some(&token))).await,
        "tokens are not accepted; this gateway accepts: a shared key (Authorization: Rouse-HMAC)",
    );
    let others = Authenticators::default()
        .with_tokens(PublishedKeys::new(&[&key]).authenticator(time_of_day))
        .with_certificates(CertificateAuthenticator::new("cluster.local"));
    for (authorization, reason) in
        [(Some(&signature), "shared keys are not accepted"), (None, "the request has no credential")]
    {
        let answer = others.authenticate(&request(authorization.map(String::as_str))).await;
        let on = "this gateway accepts: a ServiceAccount token (Authorization: Bearer), a client certificate";
        assert_refused(answer, &format!("{reason}; {on}"));
    }
    let none = Authenticators::default();
    assert!(none.is_empty() && !only_keys.is_empty() && !others.is_empty());
    assert_refused(none.authenticate(&request(None)).await, "this gateway accepts: nothing");
}

/// The parts of the credentials that must not be printed.
fn secrets(token: &str, signature: &str) -> Vec<String> {
    let mut secrets: Vec<String> = token.split('.').map(str::to_owned).collect();
    secrets.push(signature.rsplit_once('=').unwrap().1.to_owned());
    secrets.push(String::from_utf8(SECRET.to_vec()).unwrap());
    secrets.push(format!("{SECRET:?}").trim_matches(['[', ']']).to_owned());
    secrets
}

#[tokio::test(start_paused = true)]
async fn no_credential_is_part_of_an_error_or_of_debug_output() {
    let key = SigningKey::new("k1");
    let gateway = everything(&key);
    let (good, bad) = (key.token("cart-0"), SigningKey::new("k1").token("cart-0"));
    let signature = shared_key().sign("POST", "/v1/registrations", b"{}", START, [1; 16]);
    let mut printed = Vec::new();
    let broken = format!("{}x", signature.trim_end_matches(|last: char| last.is_ascii_digit()));
    for authorization in [
        format!("Bearer {good}"),
        format!("Bearer {bad}"),
        format!("Bearer {good}.x"),
        format!("Bearer x{good}"),
        format!("Basic {good}"),
        good.clone(),
        signature.clone(),
        // A second time: replayed.
        signature.clone(),
        format!("{signature} "),
        broken,
        signature.replace("key=one", "key=two"),
        signature.replace("Rouse-HMAC", "Bearer"),
    ] {
        let request = request(Some(&authorization));
        printed.push(format!("{request:?} {:?}", gateway.authenticate(&request).await));
        let plain = CredentialRequest { secure: false, ..request };
        printed.push(format!("{:?}", gateway.authenticate(&plain).await));
    }
    printed.push(format!("{gateway:?} {:#?} {:?}", shared_keys(), shared_key()));
    let printed = printed.join("\n");
    assert!(printed.contains("Pod(PodIdentity") && printed.contains("KeyHolder"), "{printed}");
    assert!(printed.contains("received before") && printed.contains("signature is wrong"), "{printed}");
    for secret in secrets(&good, &signature).iter().chain(&secrets(&bad, &signature)) {
        assert!(!printed.contains(secret.as_str()), "{secret} in {printed}");
    }
}

/// Bytes, some of which look like a credential.
fn headers() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop::sample::select(vec![
        "Bearer ",
        "Rouse-HMAC ",
        "key=one",
        ",timestamp=1700000000",
        ",nonce=00000000000000000000000000000000",
        ",signature=",
        "eyJhbGciOiJFUzI1NiIsImtpZCI6ImsxIn0",
        "e30",
        ".",
        "=",
        ",",
    ]);
    let piece = prop_oneof![
        pieces.prop_map(|piece| piece.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..20)
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_authorization_header_panics_or_is_accepted(header in headers()) {
        let _ = parse_hmac_credential(&header);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let answer = runtime.block_on(async {
            let gateway = everything(&SigningKey::new("k1"));
            let request = CredentialRequest { authorization: Some(&header), ..request(None) };
            gateway.authenticate(&request).await
        });
        prop_assert!(matches!(answer, Err(AuthError::Refused(_))), "{:?}", answer);
    }
}
