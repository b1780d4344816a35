//! Inspects the Secrets with certificates that the gateway mounts.

use std::sync::Arc;
use std::time::SystemTime;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use rouse_net::tls::{InspectedCertificate, Pem, ServerName};

use super::{SurveyClient, SurveyError};
use crate::client::ObjectKind;
use crate::objects::injected::CA_KEY;

/// A Secret with a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretSurvey {
    /// Its name, in the namespace of the gateway.
    pub name: String,
    /// Its certificate; `None` if there is no such Secret.
    pub certificate: Result<Option<CertificateSurvey>, SurveyError>,
}

/// A certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CertificateSurvey {
    /// True if the Secret has no `tls.crt`: its certificates are under other keys, which are not inspected.
    pub other_keys: bool,
    /// Why it cannot be used at all: it or its key cannot be read, or they do not belong together.
    pub fault: Option<String>,
    /// The end of its validity.
    pub expires: Option<SystemTime>,
    /// The names that clients verify, if it is for none of them.
    pub not_for: Vec<String>,
}

/// A `ConfigMap` with the CA that sidecars trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleSurvey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether its certificates verify that of the gateway.
    pub trust: Result<BundleTrust, SurveyError>,
}

/// Whether a bundle verifies a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BundleTrust {
    /// It does.
    Trusted,
    /// It exists, but the certificate could not be read.
    Unknown,
    /// There is no such `ConfigMap`, or it has no `ca.crt`.
    Missing,
    /// It does not, for this reason.
    Refused(String),
}

/// Inspects the Secret `name`. `names`: the certificate must be for one of them, if there are any. Also returns the
/// certificate, for questions about trust.
pub(super) async fn secret(
    client: &SurveyClient<'_>,
    namespace: &str,
    name: &str,
    names: &[String],
) -> (SecretSurvey, Option<InspectedCertificate>) {
    let read = client.get::<Secret>(&format!("{}/{name}", ObjectKind::SECRET.path(Some(namespace)))).await;
    let (certificate, inspected) = match read {
        Ok(Some(secret)) => {
            let (survey, inspected) = inspect(&secret, names);
            (Ok(Some(survey)), inspected)
        }
        Ok(None) => (Ok(None), None),
        Err(unseen) => (Err(unseen), None),
    };
    (SecretSurvey { name: name.to_owned(), certificate }, inspected)
}

fn inspect(secret: &Secret, names: &[String]) -> (CertificateSurvey, Option<InspectedCertificate>) {
    let pem = |key: &str| {
        let data = secret.data.as_ref()?.get(key)?;
        Some(Pem::Bytes(Arc::from(&*data.0)))
    };
    let other = CertificateSurvey { other_keys: true, ..CertificateSurvey::default() };
    let fault = |fault: String| CertificateSurvey { fault: Some(fault), ..CertificateSurvey::default() };
    let Some(chain) = pem("tls.crt") else { return (other, None) };
    let inspected = match InspectedCertificate::new(chain) {
        Ok(inspected) => inspected,
        Err(error) => return (fault(format!("tls.crt: {}", error.reason)), None),
    };
    let fault = match pem("tls.key").map(|key| inspected.check_key(key)) {
        Some(Ok(())) => None,
        Some(Err(error)) => Some(format!("tls.key: {}", error.reason)),
        None => Some("it has no tls.key".to_owned()),
    };
    let is_for = |name: &String| ServerName::try_from(&**name).is_ok_and(|name| inspected.is_for(&name));
    let not_for = if names.iter().any(is_for) { Vec::new() } else { names.to_vec() };
    let expires = inspected.expires();
    (CertificateSurvey { other_keys: false, fault, expires, not_for }, Some(inspected))
}

/// Inspects the `ConfigMap` `name`, whose `ca.crt` should verify `certificate`.
pub(super) async fn bundle(
    client: &SurveyClient<'_>,
    (namespace, name): (&str, &str),
    certificate: Option<&InspectedCertificate>,
    now: SystemTime,
) -> BundleSurvey {
    let at = format!("{}/{name}", ObjectKind::CONFIG_MAP.path(Some(namespace)));
    let trust = client.get::<ConfigMap>(&at).await.map(|found| {
        let pem = found.and_then(|map| map.data?.remove(CA_KEY));
        let Some(pem) = pem.map(|text| Pem::Bytes(text.into_bytes().into())) else {
            return BundleTrust::Missing;
        };
        match certificate.map(|certificate| certificate.check_trust(&pem, now)) {
            None => BundleTrust::Unknown,
            Some(Ok(())) => BundleTrust::Trusted,
            Some(Err(error)) => BundleTrust::Refused(error.reason.to_string()),
        }
    });
    BundleSurvey { namespace: namespace.to_owned(), name: name.to_owned(), trust }
}
