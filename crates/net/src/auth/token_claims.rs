//! Reads a `ServiceAccount` token and checks its claims: issuer, audience, dates and the pod that it is bound to.
//!
//! The claims are checked before the signature, which costs more: a flood of unsuitable tokens costs little, and an unsuitable
//! token causes no fetch of keys. Nothing of the token is used before its signature is verified.

use jsonwebtoken::Algorithm;
use jsonwebtoken::dangerous::insecure_decode;
use rouse_core::endpoint::PodUid;
use serde::Deserialize;

use super::{AuthError, PodIdentity};

/// What the claims of a token must say.
#[derive(Debug)]
pub(super) struct ClaimRules<'a> {
    /// `None`: the cluster checks the issuer.
    pub(super) issuer: Option<&'a str>,
    pub(super) audience: &'a str,
    /// The tolerance for differences of clocks, in seconds.
    pub(super) leeway: u64,
    /// Unix time.
    pub(super) now: u64,
}

/// A token whose signature is not verified yet.
pub(super) struct UnverifiedToken<'a> {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
    /// What is signed.
    pub(super) message: &'a str,
    /// In base64url.
    pub(super) signature: &'a str,
    claims: TokenClaims,
}

/// What a token says that fits the rules.
pub(super) struct CheckedClaims {
    pub(super) pod: PodIdentity,
    /// The first second of Unix time at which it is not valid any more, with the leeway.
    pub(super) expires: u64,
}

#[derive(Deserialize)]
struct TokenClaims {
    iss: String,
    aud: Audiences,
    exp: u64,
    nbf: Option<u64>,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<KubernetesClaim>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
struct KubernetesClaim {
    #[serde(default)]
    namespace: String,
    pod: Option<BoundPod>,
    serviceaccount: Option<NamedObject>,
}

#[derive(Deserialize)]
struct BoundPod {
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
}

#[derive(Deserialize)]
struct NamedObject {
    #[serde(default)]
    name: String,
}

fn refused<T>(reason: &str) -> Result<T, AuthError> {
    Err(AuthError::Refused(reason.to_owned()))
}

impl<'a> UnverifiedToken<'a> {
    pub(super) fn parse(token: &'a str) -> Result<Self, AuthError> {
        const MALFORMED: &str = "the token is not a signed JWT of a ServiceAccount";
        let Some((message, signature)) = token.rsplit_once('.') else { return refused(MALFORMED) };
        // The errors of the decoder may quote the token, so they are dropped.
        let Ok(decoded) = insecure_decode::<TokenClaims>(token) else { return refused(MALFORMED) };
        if decoded.header.crit.is_some() {
            return refused("the token has critical header fields, which are not supported");
        }
        Ok(Self {
            algorithm: decoded.header.alg,
            key_id: decoded.header.kid,
            message,
            signature,
            claims: decoded.claims,
        })
    }

    /// Checks the claims. The result counts only if the signature is verified too.
    pub(super) fn check(&self, rules: &ClaimRules<'_>) -> Result<CheckedClaims, AuthError> {
        let claims = &self.claims;
        if rules.issuer.is_some_and(|issuer| issuer != claims.iss) {
            return refused("the token is from another issuer");
        }
        let suits = match &claims.aud {
            Audiences::One(audience) => audience == rules.audience,
            Audiences::Many(all) => all.iter().any(|audience| audience == rules.audience),
        };
        if !suits {
            return Err(AuthError::Refused(format!("the token is not for the audience {}", rules.audience)));
        }
        let expires = claims.exp.saturating_add(rules.leeway);
        if rules.now >= expires {
            return refused("the token has expired");
        }
        if claims.nbf.is_some_and(|start| start > rules.now.saturating_add(rules.leeway)) {
            return refused("the token is not valid yet");
        }
        let pod =
            self.pod().ok_or_else(|| AuthError::Refused("the token is not bound to a pod".to_owned()))?;
        Ok(CheckedClaims { pod, expires })
    }

    fn pod(&self) -> Option<PodIdentity> {
        let bound = self.claims.kubernetes.as_ref()?;
        let (pod, account) = (bound.pod.as_ref()?, bound.serviceaccount.as_ref()?);
        if [&bound.namespace, &pod.name, &pod.uid, &account.name].iter().any(|it| it.is_empty()) {
            return None;
        }
        Some(PodIdentity {
            namespace: bound.namespace.clone(),
            pod: pod.name.clone(),
            uid: PodUid::new(&pod.uid),
            service_account: account.name.clone(),
        })
    }
}
