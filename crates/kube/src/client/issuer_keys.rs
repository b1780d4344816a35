//! Fetches the issuer of `ServiceAccount` tokens and its public keys from the API server (OIDC discovery).

use std::time::Duration;

use kube::Client;
use rouse_net::auth::{BoxFuture, KeySetSource};
use serde::Deserialize;

use super::api::{describe, has_code, within};
use super::permissions::{ISSUER_CONFIGURATION, ISSUER_KEYS, UrlPermission};

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(10);

/// The issuer of the cluster's tokens, read with the gateway's own client.
#[derive(Clone)]
pub struct IssuerKeyClient(Client);

#[derive(Deserialize)]
struct IssuerConfiguration {
    issuer: String,
}

impl IssuerKeyClient {
    /// Reads with `client`.
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// The issuer, as tokens name it. The operator may set it instead.
    pub async fn issuer(&self) -> Result<String, String> {
        let text = self.get(&ISSUER_CONFIGURATION).await?;
        let read = serde_json::from_str::<IssuerConfiguration>(&text).map_err(|error| error.to_string());
        let issuer = read.map(|configuration| configuration.issuer);
        let issuer = issuer.and_then(|issuer| {
            if issuer.is_empty() { Err("it names no issuer".to_owned()) } else { Ok(issuer) }
        });
        issuer.map_err(|why| format!("the answer to {} cannot be read: {why}", ISSUER_CONFIGURATION.url))
    }

    async fn get(&self, permission: &UrlPermission) -> Result<String, String> {
        let UrlPermission { url, role, .. } = *permission;
        let request = http::Request::get(url).body(Vec::new()).map_err(|error| error.to_string())?;
        let answer = within(ANSWER, self.0.request_text(request)).await;
        answer.map_err(|error| {
            let words = describe(&error);
            if has_code(&error, 403) {
                return format!("the permission to get {url} is missing (ClusterRole {role}): {words}");
            }
            format!("GET {url}: {words}")
        })
    }
}

impl KeySetSource for IssuerKeyClient {
    fn fetch(&self) -> BoxFuture<'_, Result<Vec<u8>, String>> {
        Box::pin(async move { self.get(&ISSUER_KEYS).await.map(String::into_bytes) })
    }
}

impl std::fmt::Debug for IssuerKeyClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IssuerKeyClient").finish_non_exhaustive()
    }
}
