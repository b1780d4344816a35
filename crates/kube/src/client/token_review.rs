//! Asks the API server whether a token is valid and which pod it is bound to (`TokenReview`).

use std::time::Duration;

use kube::Client;
use kube::api::PostParams;
use kube::core::Request;
use rouse_core::endpoint::PodUid;
use rouse_net::auth::{AuthError, BoxFuture, PodIdentity, TokenReviewer};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;

use super::api::{describe, has_code, path, within};

/// How long a review may take, with the wait for its turn.
const ANSWER: Duration = Duration::from_secs(5);
/// The most reviews under way at a time.
const AT_ONCE: usize = 32;

const GROUP: &str = "authentication.k8s.io";
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// The keys of `user.extra` of a pod-bound token.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// Reviews tokens with the gateway's own client.
pub struct TokenReviewClient {
    client: Client,
    permits: Semaphore,
}

#[derive(Deserialize)]
struct ReviewedToken {
    #[serde(default)]
    status: TokenVerdict,
}

#[derive(Deserialize, Default)]
struct TokenVerdict {
    #[serde(default)]
    authenticated: bool,
    #[serde(default)]
    audiences: Option<Vec<String>>,
    #[serde(default)]
    user: Option<UserInfo>,
}

#[derive(Deserialize, Default)]
struct UserInfo {
    #[serde(default)]
    username: String,
    #[serde(default)]
    extra: Option<std::collections::BTreeMap<String, Vec<String>>>,
}

impl TokenReviewClient {
    /// Reviews with `client`, whose account needs the permission to create `TokenReview`s.
    pub fn new(client: Client) -> Self {
        Self { client, permits: Semaphore::new(AT_ONCE) }
    }

    async fn ask(&self, token: &str, audience: &str) -> Result<TokenVerdict, AuthError> {
        let body = json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": "TokenReview",
            "spec": { "token": token, "audiences": [audience] },
        });
        let request = Request::new(path(GROUP, "v1", "tokenreviews", None));
        let request = request.create(&PostParams::default(), body.to_string().into_bytes());
        let asked = async {
            // The semaphore is never closed.
            let _permit = self.permits.acquire().await.ok();
            // As text: kube logs an answer that it cannot parse, and the answer contains the token.
            self.client.request_text(request.map_err(kube::Error::BuildRequest)?).await
        };
        let answer = within(ANSWER, asked).await.map_err(|error| failed(&error, token))?;
        let answer = serde_json::from_str::<ReviewedToken>(&answer);
        let answer = answer.map_err(|_| unavailable("the API server's answer cannot be read"))?;
        Ok(answer.status)
    }
}

/// The text of a failed request. A message of the API server that quotes the token is left out.
fn failed(error: &kube::Error, token: &str) -> AuthError {
    let words = describe(error);
    let words = if words.contains(token) { "the API server refused the review".to_owned() } else { words };
    if has_code(error, 403) {
        let permission = format!("the permission to create tokenreviews.{GROUP} is missing");
        return unavailable(&format!("{permission}: {words}"));
    }
    unavailable(&words)
}

fn unavailable(words: &str) -> AuthError {
    AuthError::Unavailable(format!("the token cannot be reviewed now: {words}"))
}

fn refused<T>(words: &str) -> Result<T, AuthError> {
    Err(AuthError::Refused(words.to_owned()))
}

/// The pod that an accepted token is bound to.
fn identity(status: TokenVerdict, audience: &str) -> Result<PodIdentity, AuthError> {
    if !status.authenticated {
        return refused(
            "the API server does not accept the token: it is not valid, has expired, or its pod is gone",
        );
    }
    // An API server that does not know audiences returns none.
    if !status.audiences.iter().flatten().any(|confirmed| confirmed == audience) {
        return refused(&format!("the token is not for the audience {audience}"));
    }
    let user = status.user.unwrap_or_default();
    let account = user.username.strip_prefix(ACCOUNT_PREFIX).and_then(|account| account.split_once(':'));
    let account = account.filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    let Some((namespace, account)) = account.filter(|(_, name)| !name.contains(':')) else {
        return refused("the token is not that of a ServiceAccount");
    };
    let extra = user.extra.unwrap_or_default();
    let only = |key: &str| match extra.get(key).map(Vec::as_slice) {
        Some([value]) if !value.is_empty() => Some(value.as_str()),
        _ => None,
    };
    let Some((pod, uid)) = only(POD_NAME).zip(only(POD_UID)) else {
        return refused("the token is not bound to a pod: mount a projected ServiceAccount token");
    };
    Ok(PodIdentity {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        uid: PodUid::new(uid),
        service_account: account.to_owned(),
    })
}

impl TokenReviewer for TokenReviewClient {
    fn review<'a>(
        &'a self,
        token: &'a str,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<PodIdentity, AuthError>> {
        Box::pin(async move {
            if token.is_empty() {
                return refused("there is no token");
            }
            identity(self.ask(token, audience).await?, audience)
        })
    }
}

impl std::fmt::Debug for TokenReviewClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenReviewClient").finish_non_exhaustive()
    }
}
