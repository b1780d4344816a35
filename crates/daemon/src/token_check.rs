//! How tokens of pods are checked: offline with the keys of the cluster's issuer, or by asking the API server.

use std::sync::Arc;
use std::time::Duration;

use rouse_kube::client::issuer_keys::IssuerKeyClient;
use rouse_kube::client::token_review::TokenReviewClient;
use rouse_net::auth::TokenCheck;
use tokio::time::{Instant, sleep_until};

/// The values of a setting of [`TokenCheckMode`].
pub(crate) const TOKEN_CHECKS: &[(&str, TokenCheckMode)] =
    &[("jwks", TokenCheckMode::Jwks), ("tokenreview", TokenCheckMode::TokenReview)];
/// The pause before a cluster is asked again for its issuer.
const ISSUER_PAUSE: Duration = Duration::from_secs(5);

/// How tokens are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCheckMode {
    /// Offline, with the public keys of the issuer.
    Jwks,
    /// By asking the API server.
    TokenReview,
}

/// The check. Waits until the cluster has told its issuer, unless the operator has. `refused` says who is refused meanwhile, and
/// what the operator can do.
pub(crate) async fn token_check(
    mode: TokenCheckMode,
    issuer: Option<String>,
    (reviews, keys): (TokenReviewClient, IssuerKeyClient),
    refused: &str,
) -> TokenCheck {
    if mode == TokenCheckMode::TokenReview {
        return TokenCheck::Review(Arc::new(reviews));
    }
    let issuer = match issuer {
        Some(issuer) => issuer,
        None => loop {
            match keys.issuer().await {
                Ok(issuer) => break issuer,
                Err(reason) => {
                    tracing::error!(reason, "{refused}");
                    sleep_until(Instant::now() + ISSUER_PAUSE).await;
                }
            }
        },
    };
    TokenCheck::KeySet { issuer, source: Arc::new(keys) }
}
