//! Holds the enabled authentication methods, and chooses one by the credential of a request.

use std::fmt;
use std::sync::Arc;

use super::hmac::{SCHEME, SignedRequest, parse_hmac_credential};
use super::mtls::CertificateAuthenticator;
use super::shared_keys::SharedKeys;
use super::token::TokenAuthenticator;
use super::token_cache::digest_of;
use super::{AuthError, Sender};

/// What a credential is checked with. Its `Debug` output does not contain the credential or the body.
#[derive(Clone, Copy)]
pub struct CredentialRequest<'a> {
    /// The HTTP method.
    pub method: &'a str,
    /// The path of the request, with its query if it has one.
    pub path: &'a str,
    /// The whole body.
    pub body: &'a [u8],
    /// The value of the `Authorization` header. The caller rejects a request with several.
    pub authorization: Option<&'a [u8]>,
    /// The result of [`Authenticators::certificate_sender`] for the connection.
    pub certificate: Option<&'a Result<Sender, AuthError>>,
    /// Whether the connection is TLS.
    pub secure: bool,
}

/// Which credential a request has, as the request names it. It contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CredentialId {
    /// A token, by its digest.
    Token([u8; 32]),
    /// A shared key, by its id.
    Key(Box<str>),
    /// The client certificate of the connection.
    Certificate,
}

impl CredentialRequest<'_> {
    /// Which credential it has. Nothing is verified: this costs a digest at most.
    pub fn credential_id(&self) -> Option<CredentialId> {
        let Some(authorization) = self.authorization else {
            return self.certificate.filter(|sender| sender.is_ok()).map(|_| CredentialId::Certificate);
        };
        let (scheme, credential) = split_scheme(authorization);
        if scheme.eq_ignore_ascii_case(b"Bearer") {
            Some(CredentialId::Token(digest_of(credential)))
        } else if scheme.eq_ignore_ascii_case(SCHEME.as_bytes()) {
            Some(CredentialId::Key(parse_hmac_credential(credential)?.key_id.into()))
        } else {
            None
        }
    }
}

impl fmt::Debug for CredentialRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialRequest")
            .field("method", &self.method)
            .field("path", &self.path)
            .field("body", &self.body.len())
            .field("authorization", &self.authorization.map(|_| "(hidden)"))
            .field("certificate", &self.certificate)
            .field("secure", &self.secure)
            .finish()
    }
}

/// The enabled ways to authenticate. Without any, every request is refused.
#[derive(Debug, Default)]
pub struct Authenticators {
    tokens: Option<TokenAuthenticator>,
    shared_keys: Option<Arc<SharedKeys>>,
    certificates: Option<CertificateAuthenticator>,
}

impl Authenticators {
    /// Accepts `ServiceAccount` tokens, on TLS connections.
    #[must_use]
    pub fn with_tokens(mut self, tokens: TokenAuthenticator) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Accepts requests that are signed with a shared key.
    #[must_use]
    pub fn with_shared_keys(mut self, keys: Arc<SharedKeys>) -> Self {
        self.shared_keys = Some(keys);
        self
    }

    /// Accepts client certificates.
    #[must_use]
    pub fn with_certificates(mut self, certificates: CertificateAuthenticator) -> Self {
        self.certificates = Some(certificates);
        self
    }

    /// Whether none is enabled.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_none() && self.shared_keys.is_none() && self.certificates.is_none()
    }

    /// Who the client certificate (DER) of a connection is for, once per connection. `None` if certificates are not enabled.
    pub fn certificate_sender(&self, certificate: &[u8]) -> Option<Result<Sender, AuthError>> {
        self.certificates.as_ref().map(|certificates| certificates.sender(certificate))
    }

    /// Who sent a request. A shared key, a client certificate and a token that was verified before are decided without
    /// waiting; a new token may wait for the keys of its issuer or for the cluster.
    pub async fn authenticate(&self, request: &CredentialRequest<'_>) -> Result<Sender, AuthError> {
        let Some(authorization) = request.authorization else { return self.by_certificate(request) };
        let (scheme, credential) = split_scheme(authorization);
        if scheme.eq_ignore_ascii_case(b"Bearer") {
            self.by_token(credential, request.secure).await
        } else if scheme.eq_ignore_ascii_case(SCHEME.as_bytes()) {
            self.by_shared_key(credential, request)
        } else {
            Err(self.refused("the scheme of the Authorization header is unknown"))
        }
    }

    async fn by_token(&self, token: &[u8], secure: bool) -> Result<Sender, AuthError> {
        let Some(tokens) = &self.tokens else { return Err(self.refused("tokens are not accepted")) };
        if !secure {
            // Also if the token is valid: it is exposed on the network now.
            return Err(AuthError::Refused(
                "a token was sent on a connection without TLS; register over https".to_owned(),
            ));
        }
        let malformed = |_| AuthError::Refused("the token is not text".to_owned());
        let token = str::from_utf8(token).map_err(malformed)?;
        tokens.authenticate(token).await.map(Sender::Pod)
    }

    fn by_shared_key(&self, credential: &[u8], request: &CredentialRequest<'_>) -> Result<Sender, AuthError> {
        let Some(keys) = &self.shared_keys else {
            return Err(self.refused("shared keys are not accepted"));
        };
        let Some(credential) = parse_hmac_credential(credential) else {
            return Err(AuthError::Refused(format!(
                "the {SCHEME} header is not key=ID,timestamp=SECONDS,nonce=HEX,signature=HEX"
            )));
        };
        let CredentialRequest { method, path, body, .. } = *request;
        keys.authenticate(&credential, SignedRequest { method, path, body })
    }

    fn by_certificate(&self, request: &CredentialRequest<'_>) -> Result<Sender, AuthError> {
        match (&self.certificates, request.certificate) {
            (Some(_), Some(sender)) => sender.clone(),
            _ => Err(self.refused("the request has no credential")),
        }
    }

    fn refused(&self, reason: &str) -> AuthError {
        let modes = [
            ("a ServiceAccount token (Authorization: Bearer)", self.tokens.is_some()),
            ("a shared key (Authorization: Rouse-HMAC)", self.shared_keys.is_some()),
            ("a client certificate", self.certificates.is_some()),
        ];
        let enabled: Vec<&str> = modes.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
        let enabled = if enabled.is_empty() { "nothing".to_owned() } else { enabled.join(", ") };
        AuthError::Refused(format!("{reason}; this gateway accepts: {enabled}"))
    }
}

/// The scheme of an `Authorization` header, and what follows it.
fn split_scheme(value: &[u8]) -> (&[u8], &[u8]) {
    let value = value.trim_ascii();
    match value.iter().position(|byte| *byte == b' ') {
        Some(end) => (&value[..end], value[end..].trim_ascii_start()),
        None => (value, b""),
    }
}
