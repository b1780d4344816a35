//! Tokens: what the API server says in a `TokenReview`, the keys of the issuer and its name.

use http::Method;
use rouse_core::endpoint::PodUid;
use rouse_kube::client::issuer_keys::IssuerKeyClient;
use rouse_kube::client::token_review::TokenReviewClient;
use rouse_net::auth::{AuthError, KeySetSource as _, PodIdentity, TokenReviewer as _};
use rouse_testkit::api_server::{ApiServer, InjectedFault};
use serde_json::{Value, json};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const AUDIENCE: &str = "rouse-register";
const TOKEN: &str = "header.payload.signature";

/// The status of a review of a good token.
fn good() -> Value {
    json!({"authenticated": true, "audiences": ["other", AUDIENCE],
           "user": {"username": "system:serviceaccount:shop:cart",
                    "extra": {"authentication.kubernetes.io/pod-name": ["cart-1"],
                              "authentication.kubernetes.io/pod-uid": ["uid-1"]}}})
}

async fn review(api: &ApiServer) -> Result<PodIdentity, AuthError> {
    let said = TokenReviewClient::new(api.client()).review(TOKEN, AUDIENCE).await;
    assert!(!format!("{said:?}").contains("payload"), "{said:?}");
    said
}

/// The outcome of a review with this status.
async fn reviewed(status: &Value) -> Result<PodIdentity, AuthError> {
    let api = ApiServer::default();
    // Like the API server, the answer repeats the token.
    api.object_at(REVIEWS, json!({"kind": "TokenReview", "spec": {"token": TOKEN}, "status": status}));
    let said = review(&api).await;
    let asked = api.requests(|request| request.method == Method::POST && request.path == REVIEWS);
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].body["spec"], json!({"token": TOKEN, "audiences": [AUDIENCE]}));
    said
}

#[tokio::test(start_paused = true)]
async fn a_token_that_the_api_server_accepts_is_that_of_its_pod() {
    let expected = PodIdentity {
        namespace: "shop".to_owned(),
        pod: "cart-1".to_owned(),
        uid: PodUid::new("uid-1"),
        service_account: "cart".to_owned(),
    };
    assert_eq!(reviewed(&good()).await, Ok(expected));
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_not_exactly_right_is_refused() {
    let name = "/user/extra/authentication.kubernetes.io~1pod-name";
    let uid = "/user/extra/authentication.kubernetes.io~1pod-uid";
    let cases = [
        ("/authenticated", json!(false), "does not accept the token"),
        ("/authenticated", json!(null), "cannot be read"),
        ("/audiences", json!(["other"]), "not for the audience rouse-register"),
        ("/audiences", json!([]), "not for the audience"),
        ("/audiences", json!(null), "not for the audience"),
        ("/user", json!(null), "not that of a ServiceAccount"),
        ("/user/username", json!("admin"), "not that of a ServiceAccount"),
        ("/user/username", json!("system:serviceaccount:shop"), "not that of a ServiceAccount"),
        ("/user/username", json!("system:serviceaccount::cart"), "not that of a ServiceAccount"),
        ("/user/username", json!("system:serviceaccount:shop:cart:x"), "not that of a ServiceAccount"),
        ("/user/extra", json!(null), "not bound to a pod"),
        (name, json!([]), "not bound to a pod"),
        (name, json!(["cart-1", "cart-2"]), "not bound to a pod"),
        (uid, json!([""]), "not bound to a pod"),
    ];
    for (pointer, value, says) in cases {
        let mut status = good();
        *status.pointer_mut(pointer).unwrap() = value.clone();
        match reviewed(&status).await.unwrap_err() {
            AuthError::Refused(text) => assert!(text.contains(says), "{pointer} {value}: {text}"),
            AuthError::Unavailable(text) => {
                assert!(says == "cannot be read" && text.contains(says), "{text}");
            }
        }
    }
    assert!(matches!(reviewed(&json!({})).await, Err(AuthError::Refused(_))));
}

#[tokio::test(start_paused = true)]
async fn a_review_that_fails_is_put_off_and_the_token_is_in_no_text() {
    let api = ApiServer::default();
    for (code, reason, says) in [
        (403, "not you", "the permission to create tokenreviews.authentication.k8s.io is missing: not you"),
        (500, "etcd", "etcd"),
        (422, "spec.token: Invalid value: header.payload.signature", "refused the review"),
    ] {
        api.refuse(Method::POST, REVIEWS, code, reason, Some(1));
        let Err(AuthError::Unavailable(text)) = review(&api).await else { panic!("{code}") };
        assert!(text.contains(says), "{text}");
    }
    api.trap(REVIEWS, InjectedFault::Hang);
    assert!(matches!(review(&api).await, Err(AuthError::Unavailable(text)) if text.contains("within 5 s")));
    api.set_down(true);
    assert!(matches!(review(&api).await, Err(AuthError::Unavailable(text)) if text.contains("refused")));
    let empty = TokenReviewClient::new(api.client()).review("", AUDIENCE).await;
    assert!(matches!(empty, Err(AuthError::Refused(_))));
}

#[tokio::test(start_paused = true)]
async fn the_keys_and_the_name_of_the_issuer_come_from_the_api_server() {
    let api = ApiServer::default();
    let keys = json!({"keys": [{"kty": "RSA", "kid": "1"}]});
    api.object_at("/openid/v1/jwks", keys.clone());
    let configuration = "/.well-known/openid-configuration";
    api.object_at(
        configuration,
        json!({"issuer": "https://kubernetes.default.svc", "jwks_uri": "https://x/jwks"}),
    );
    let issuer = IssuerKeyClient::new(api.client());
    let fetched: Value = serde_json::from_slice(&issuer.fetch().await.unwrap()).unwrap();
    assert_eq!(fetched, keys);
    assert_eq!(issuer.issuer().await.as_deref(), Ok("https://kubernetes.default.svc"));
    for bad in [json!({"issuer": ""}), json!({})] {
        api.object_at(configuration, bad);
        assert!(issuer.issuer().await.unwrap_err().contains(configuration));
    }
    api.refuse(Method::GET, "/openid", 403, "anonymous", Some(1));
    let text = issuer.fetch().await.unwrap_err();
    assert!(text.contains("system:service-account-issuer-discovery") && text.contains("anonymous"), "{text}");
    api.set_down(true);
    assert!(issuer.fetch().await.unwrap_err().contains("connection refused"));
}
