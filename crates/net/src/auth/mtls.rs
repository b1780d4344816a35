//! Authenticates pods by their client certificates: reads the `ServiceAccount` from the SPIFFE ID in the certificate.

use rustls_pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::{AuthError, Sender, is_namespace};

/// The names (SAN) of a certificate (DER): its URIs, then its DNS names. Empty if it has none, or cannot be read.
pub fn certificate_names(certificate: &[u8]) -> Vec<String> {
    let certificate = CertificateDer::from(certificate);
    let Ok(certificate) = EndEntityCert::try_from(&certificate) else { return Vec::new() };
    certificate.valid_uri_names().chain(certificate.valid_dns_names()).map(str::to_owned).collect()
}

/// Reads who a verified client certificate is for.
#[derive(Debug, Clone)]
pub struct CertificateAuthenticator {
    trust_domain: String,
}

impl CertificateAuthenticator {
    /// Accepts certificates of this SPIFFE trust domain, such as `cluster.local`.
    pub fn new(trust_domain: &str) -> Self {
        Self { trust_domain: trust_domain.to_owned() }
    }

    /// The `ServiceAccount` of a certificate (DER) whose chain was verified in the handshake: it must have exactly one URI
    /// name, `spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/NAME`.
    pub fn sender(&self, certificate: &[u8]) -> Result<Sender, AuthError> {
        let refused = |reason: String| AuthError::Refused(reason);
        let certificate = CertificateDer::from(certificate);
        let certificate = EndEntityCert::try_from(&certificate)
            .map_err(|_| refused("the client certificate cannot be read".to_owned()))?;
        let mut uris = certificate.valid_uri_names();
        let (Some(uri), None) = (uris.next(), uris.next()) else {
            return Err(refused("the client certificate must have exactly one URI name".to_owned()));
        };
        self.service_account(uri).ok_or_else(|| {
            let domain = &self.trust_domain;
            refused(format!(
                "the URI name of the client certificate is not spiffe://{domain}/ns/NAMESPACE/sa/NAME"
            ))
        })
    }

    fn service_account(&self, uri: &str) -> Option<Sender> {
        let path = uri.strip_prefix("spiffe://")?.strip_prefix(&self.trust_domain)?.strip_prefix("/ns/")?;
        let (namespace, name) = path.split_once("/sa/")?;
        if !is_namespace(namespace) || !is_service_account(name) {
            return None;
        }
        Some(Sender::ServiceAccount { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

/// The name of a `ServiceAccount` is a DNS subdomain.
fn is_service_account(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_form_names_a_service_account() {
        let authenticator = CertificateAuthenticator::new("cluster.local");
        let sender = |uri: &str| authenticator.service_account(uri);
        for name in ["cart", "cart.v2"] {
            let found = sender(&format!("spiffe://cluster.local/ns/shop/sa/{name}"));
            let expected = Sender::ServiceAccount { namespace: "shop".to_owned(), name: name.to_owned() };
            assert_eq!(found, Some(expected));
        }
        for uri in [
            "",
            "https://cluster.local/ns/shop/sa/cart",
            "SPIFFE://cluster.local/ns/shop/sa/cart",
            "spiffe://other.local/ns/shop/sa/cart",
            "spiffe://cluster.local.evil/ns/shop/sa/cart",
            "spiffe://cluster.local:443/ns/shop/sa/cart",
            "spiffe://user@cluster.local/ns/shop/sa/cart",
            "spiffe://cluster.local/ns//sa/cart",
            "spiffe://cluster.local/ns/shop/sa/",
            "spiffe://cluster.local/ns/shop/sa/cart/",
            "spiffe://cluster.local/ns/shop/sa/cart/more",
            "spiffe://cluster.local/ns/shop/sa/cart?x",
            "spiffe://cluster.local/ns/shop/sa/cart#x",
            "spiffe://cluster.local/ns/shop/sa/c%61rt",
            "spiffe://cluster.local/ns/shop/sa/Cart",
            "spiffe://cluster.local/ns/shop/sa/cart..v2",
            "spiffe://cluster.local/ns/a/ns/shop/sa/cart",
            "spiffe://cluster.local/x/ns/shop/sa/cart",
            "spiffe://cluster.local/ns/shop/sa/cart/sa/other",
            "spiffe://cluster.local/sa/cart/ns/shop",
        ] {
            assert_eq!(sender(uri), None, "{uri}");
        }
    }
}
