//! Reports the certificates of the gateway: those that cannot be used, have expired or soon will, or are for another name.

use std::time::{Duration, SystemTime};

use rouse_kube::survey::{CertificateSurvey, SecretSurvey, SurveyError};

use super::super::report::{Check, Outcome};
use super::{Advice, unknown};

/// How long before its end a certificate is warned of.
const SOON: Duration = Duration::from_hours(30 * 24);
const DAY: u64 = 24 * 60 * 60;

/// What a certificate is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct CertificateUse {
    /// The listener, as a sentence names it.
    pub(super) listener: &'static str,
    /// The processes that serve it.
    pub(super) servers: &'static str,
    /// What happens without a usable certificate.
    pub(super) lost: &'static str,
    /// The result if clients refuse it.
    pub(super) refused: Outcome,
    /// How to renew it.
    pub(super) renew: &'static str,
}

/// Requests over TLS.
pub(super) const REQUESTS: CertificateUse = CertificateUse {
    listener: "requests over TLS",
    servers: "gateways",
    lost: "clients refuse it",
    refused: Outcome::Failure,
    renew: "renew it; the gateway loads it without a restart",
};

/// Registrations of pods.
pub(super) const REGISTRATIONS: CertificateUse = CertificateUse {
    listener: "registrations",
    servers: "gateways",
    lost: "sidecars do not register, so pods are found by EndpointSlices only",
    refused: Outcome::Warning,
    renew: "renew it, as docs/inject.md says; the gateway loads it without a restart",
};

/// Load reports of gateways.
pub(super) const REPORTS: CertificateUse = CertificateUse {
    listener: "load reports",
    servers: "controllers",
    lost: "gateways do not report their load, so nothing is scaled down",
    refused: Outcome::Warning,
    renew: "renew it, as docs/inject.md says; the controller loads it without a restart",
};

/// The configuration of Envoys.
pub(super) const ENVOYS: CertificateUse = CertificateUse {
    listener: "Envoys",
    servers: "replicas of rouse-xds",
    lost: "Envoys keep what they have, and send requests to pods that are gone",
    refused: Outcome::Warning,
    renew: "renew it, as docs/envoy.md says; rouse xds loads it without a restart",
};

/// The check of one certificate.
pub(super) fn check(secret: &SecretSurvey, now: SystemTime, of: CertificateUse, advice: &Advice) -> Check {
    let name = format!("the certificate for {} is valid (Secret {})", of.listener, secret.name);
    let get = format!("{} -n {} get secret {}", advice.kubectl, advice.gateway, secret.name);
    let found = match &secret.certificate {
        Ok(Some(found)) => found,
        Ok(None) => {
            return Check::failure(name)
                .because("there is no such Secret, and new pods of the gateway wait for it")
                .next(get);
        }
        // Few users may read Secrets, so this is not a warning.
        Err(SurveyError::Forbidden(words)) => {
            return Check::not_checked(name).because(words).next(format!(
                "check as a user who may get the Secret {}, or watch rouse_tls_certificate_expiry_timestamp_seconds",
                secret.name
            ));
        }
        Err(unseen) => return unknown(name, unseen, advice),
    };
    if found.other_keys {
        return Check::not_checked(name)
            .because("the Secret has no tls.crt: only certificates under this key are checked");
    }
    judged(name, found, now, of).unwrap_or_else(|check| check.next(format!("{}\n{get} -o yaml", of.renew)))
}

/// `Err`: the check of a certificate with a problem, without its next step.
fn judged(
    name: String,
    found: &CertificateSurvey,
    now: SystemTime,
    of: CertificateUse,
) -> Result<Check, Check> {
    let refused =
        |name| if of.refused == Outcome::Failure { Check::failure(name) } else { Check::warning(name) };
    if let Some(fault) = &found.fault {
        let detail = format!("{fault}; {} that start now do not come up with it", of.servers);
        return Err(Check::failure(name).because(detail));
    }
    if !found.not_for.is_empty() {
        let detail = format!("it is not for {}: {}", found.not_for.join(" or "), of.lost);
        return Err(refused(name).because(detail));
    }
    let Some(expires) = found.expires else {
        return Err(Check::warning(name).because("its expiry cannot be read"));
    };
    match expires.duration_since(now) {
        Err(past) => {
            let ago = days(past.duration());
            Err(refused(name).because(format!("it expired {ago} ago: {}", of.lost)))
        }
        Ok(left) if left < SOON => {
            Err(Check::warning(name).because(format!("it expires in {}: then {}", days(left), of.lost)))
        }
        Ok(left) => Ok(Check::pass(name).because(format!("it expires in {}", days(left)))),
    }
}

fn days(time: Duration) -> String {
    match time.as_secs() / DAY {
        0 => "less than a day".to_owned(),
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    }
}
