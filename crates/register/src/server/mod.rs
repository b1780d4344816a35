//! The gateway's side of registrations: authenticates the sender, checks that the pod owns what it claims, and applies the
//! push.
//!
//! `listener.rs` has the connections, `rate_limits.rs` and `known_senders.rs` limit requests.
//! Every request ends in one [`Reply`] (`outcome.rs`). Nothing changes unless all checks passed.

mod known_senders;
mod listener;
mod metrics;
mod outcome;
mod rate_limits;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rouse_core::endpoint::ServiceId;
use rouse_core::merge::{PushEvent, PushOutcome, PushRefused};
use rouse_core::registry::Registry;
use rouse_core::time::{Clock, Moment};
use rouse_net::auth::{
    AuthError, Authenticators, ClaimError, ClaimGrant, CredentialRequest, Ownership, PushMode, Sender,
};

use known_senders::SenderId;
pub use listener::{ListenerLimits, ListenerTransport};
pub use metrics::RegistrationMetrics;
pub use outcome::Reply;
use outcome::{Outcome, Refusal};
use rate_limits::RateLimits;
pub use rate_limits::RegistrationRates;

use crate::wire::{AnswerStatus, MAX_GATEWAYS, PATH, Registration, RegistrationAnswer};

/// Lists the gateways in service, for answers.
pub type GatewayList = Arc<dyn Fn() -> Vec<SocketAddr> + Send + Sync>;

/// The settings of the server.
#[derive(Debug, Clone)]
pub struct RegistrationSettings {
    /// What is done with the pushes of services that do not say so themselves.
    pub mode: PushMode,
    /// How long a push is valid, as the registry's merge policy says.
    pub lease: Duration,
    /// How many registrations are accepted for checking.
    pub rates: RegistrationRates,
}

/// What the server uses.
pub struct RegistrationParts {
    /// Checks credentials.
    pub authenticators: Authenticators,
    /// Checks claims.
    pub ownership: Arc<dyn Ownership>,
    /// Takes the pushes.
    pub registry: Arc<Registry>,
    /// The registry's clock.
    pub clock: Arc<dyn Clock>,
    /// Read to check whether client certificates are still valid.
    pub time_of_day: fn() -> SystemTime,
    /// The gateways in service.
    pub gateways: GatewayList,
    /// Counts what happens.
    pub metrics: RegistrationMetrics,
}

/// The registration server of one gateway.
pub struct RegistrationServer {
    settings: RegistrationSettings,
    parts: RegistrationParts,
    limits: Mutex<RateLimits>,
}

/// A registration whose credential is valid.
struct Parsed {
    registration: Registration,
    /// The credential is of the namespace that the registration names.
    of_its_namespace: bool,
}

/// A request for a registration. Its body was read.
#[derive(Debug)]
pub struct RegistrationRequest<'a> {
    /// The address of the client.
    pub peer: IpAddr,
    /// Whether the connection uses TLS.
    pub secure: bool,
    /// What the client certificate proves, if there is one.
    pub certificate: Option<&'a Result<Sender, AuthError>>,
    /// The value of the header `Authorization`.
    pub authorization: Option<&'a [u8]>,
    /// The body.
    pub body: &'a [u8],
}

impl RegistrationRequest<'_> {
    fn credential(&self) -> CredentialRequest<'_> {
        CredentialRequest {
            method: "POST",
            path: PATH,
            body: self.body,
            authorization: self.authorization,
            secure: self.secure,
            certificate: self.certificate,
        }
    }

    /// Who sent it, as it says.
    fn sender(&self, registration: &Registration) -> Option<SenderId> {
        let credential = self.credential().credential_id()?;
        Some(SenderId { credential, peer: self.peer.to_canonical(), pod: registration.claim.uid.clone() })
    }
}

impl RegistrationServer {
    /// A server that has seen no request.
    pub fn new(settings: RegistrationSettings, parts: RegistrationParts) -> Arc<Self> {
        let limits = Mutex::new(RateLimits::new(settings.rates, parts.clock.now()));
        Arc::new(Self { settings, parts, limits })
    }

    /// Handles one request, and counts it.
    pub async fn register(&self, request: &RegistrationRequest<'_>) -> Reply {
        let began = self.parts.clock.now();
        let mut parsed = None;
        // Not in the condition: the lock would be held across the check.
        let admitted = self.limits().admit(request.peer, began);
        let result = if admitted {
            self.decide_counted(request, &mut parsed).await
        } else {
            self.decide_known(request, &mut parsed).await
        };
        let outcome = match &result {
            Ok((outcome, _)) => *outcome,
            Err(refusal) => refusal.outcome(),
        };
        let registration = parsed.as_ref().map(|parsed: &Parsed| &parsed.registration);
        let (service, event) = match registration {
            Some(Registration { claim, event, .. }) => (Some(&claim.service), Some(*event)),
            None => (None, None),
        };
        // A sender gives labels only to services of its own namespaces, and only to those that exist: there is room for a bounded
        // number.
        let labelled = result.is_ok() || parsed.as_ref().is_some_and(|parsed| parsed.of_its_namespace);
        let known = |id: &&ServiceId| result.is_ok() || self.parts.registry.get(id).is_some();
        let label = service.filter(|_| labelled).filter(known);
        let took = self.parts.clock.now().since(began);
        self.parts.metrics.count(label, event, outcome, took);
        match result {
            Ok((_, answer)) => Reply::answer(&answer),
            Err(refusal) => {
                log_refusal(&refusal, request.peer, registration);
                Reply::refusal(&refusal)
            }
        }
    }

    /// Decides about a request that was charged as a failure of its source, and refunds it if it was none: so concurrent requests
    /// cannot all pass.
    async fn decide_counted(
        &self,
        request: &RegistrationRequest<'_>,
        parsed: &mut Option<Parsed>,
    ) -> Result<(Outcome, RegistrationAnswer), Refusal> {
        let result = self.decide(request, parsed).await;
        let now = self.parts.clock.now();
        if !result.as_ref().is_err_and(Refusal::is_failure) {
            self.limits().succeeded(request.peer, now);
        }
        if let (Ok(_), Some(Parsed { registration, .. })) = (&result, parsed)
            && let Some(sender) = request.sender(registration)
        {
            self.limits().accepted(sender, now);
        }
        result
    }

    /// Decides about a request whose source is over a limit, if its sender is known. Everything before this is cheap.
    async fn decide_known(
        &self,
        request: &RegistrationRequest<'_>,
        parsed: &mut Option<Parsed>,
    ) -> Result<(Outcome, RegistrationAnswer), Refusal> {
        let named = Registration::parse(request.body).ok();
        let sender = named.and_then(|registration| request.sender(&registration));
        let limited = || Refusal::Limited(rate_limits::WAIT);
        let sender = sender.ok_or_else(limited)?;
        if !self.limits().admit_known(&sender, self.parts.clock.now()) {
            return Err(limited());
        }
        let result = self.decide(request, parsed).await;
        if result.is_ok() {
            self.limits().accepted(sender, self.parts.clock.now());
        }
        result
    }

    async fn decide(
        &self,
        request: &RegistrationRequest<'_>,
        parsed: &mut Option<Parsed>,
    ) -> Result<(Outcome, RegistrationAnswer), Refusal> {
        let sender = self.parts.authenticators.authenticate(&request.credential()).await.map_err(
            |error| match error {
                AuthError::Refused(reason) => Refusal::Unauthenticated(reason),
                AuthError::Unavailable(reason) => Refusal::Unchecked(reason),
            },
        )?;
        let registration = Registration::parse(request.body).map_err(Refusal::Malformed)?;
        let of_its_namespace = sender.is_of(registration.claim.service.namespace());
        let Parsed { registration, .. } = parsed.insert(Parsed { registration, of_its_namespace });
        check_sender(&sender, request.peer, registration)?;
        let grant = self.parts.ownership.check(&registration.claim).await.map_err(|error| match error {
            ClaimError::Denied(reason) => Refusal::Denied(reason),
            // Only a token proves that the pod exists: the holder of a shared key can invent pods, each of which is looked up.
            ClaimError::Unavailable(reason) if !matches!(sender, Sender::Pod(_)) => {
                Refusal::Unverified(reason)
            }
            ClaimError::Unavailable(reason) => Refusal::Unavailable(reason),
            ClaimError::TooEarly(reason) => Refusal::TooEarly(reason),
        })?;
        self.apply(registration, grant)
    }

    /// Applies a verified registration, as the push mode of its service says.
    fn apply(
        &self,
        registration: &Registration,
        grant: ClaimGrant,
    ) -> Result<(Outcome, RegistrationAnswer), Refusal> {
        let answer = |status, order: rouse_core::merge::PushOrder| RegistrationAnswer {
            status,
            lease_seconds: self.settings.lease.as_secs(),
            boot: order.boot.to_string(),
            sequence: order.sequence,
            gateways: (self.parts.gateways)().into_iter().take(MAX_GATEWAYS).collect(),
        };
        match grant.mode.unwrap_or(self.settings.mode) {
            PushMode::Off => return Ok((Outcome::Off, answer(AnswerStatus::Accepted, registration.order))),
            PushMode::Observe => {
                return Ok((Outcome::Observed, answer(AnswerStatus::Accepted, registration.order)));
            }
            PushMode::On => {}
        }
        let rises = |grant: ClaimGrant| grant.leaving && registration.event == PushEvent::Ready;
        if rises(grant) {
            return Err(Refusal::Denied(format!(
                "pod {} is being deleted and cannot become ready",
                registration.claim.pod
            )));
        }
        // Not `Registry::service`, which would create a service that was deleted meanwhile.
        let Some(target) = self.parts.registry.get(&registration.claim.service) else {
            return Err(Refusal::Unavailable(format!(
                "Service {} is not known yet; try again",
                registration.claim.service
            )));
        };
        let is_true = || self.parts.ownership.granted(&registration.claim).is_some_and(|grant| !rises(grant));
        let outcome = target.push_if(registration.push(grant), is_true).map_err(|refused| match refused {
            PushRefused::TooManyPods { .. } => Refusal::TooManyPods(refused.to_string()),
            PushRefused::Outdated => Refusal::Unavailable(refused.to_string()),
        })?;
        Ok(match outcome {
            PushOutcome::Accepted => (Outcome::Accepted, answer(AnswerStatus::Accepted, registration.order)),
            PushOutcome::Renewed => (Outcome::Renewed, answer(AnswerStatus::Renewed, registration.order)),
            PushOutcome::Stale(newest) => {
                (Outcome::Stale, answer(AnswerStatus::Stale, newest.unwrap_or(registration.order)))
            }
        })
    }

    /// Who the client certificate (DER) of a connection is for, if certificates are accepted.
    fn certificate_sender(&self, certificate: &[u8]) -> Option<Result<Sender, AuthError>> {
        self.parts.authenticators.certificate_sender(certificate)
    }

    /// The reply to a body over the limit.
    fn too_large(&self, peer: IpAddr) -> Reply {
        self.count_refusal(peer, Refusal::TooLarge.outcome());
        Reply::refusal(&Refusal::TooLarge)
    }

    /// The reply to a request whose client certificate is not valid any more. The connection is closed, so that its client
    /// presents another one.
    fn refuse_certificate(&self, peer: IpAddr) -> Reply {
        let text =
            "the client certificate has expired, or its authority is no longer trusted; present a new one";
        let refusal = Refusal::Unauthenticated(text.to_owned());
        self.count_refusal(peer, refusal.outcome());
        log_refusal(&refusal, peer, None);
        Reply { close: true, ..Reply::refusal(&refusal) }
    }

    fn now(&self) -> Moment {
        self.parts.clock.now()
    }

    fn time_of_day(&self) -> SystemTime {
        (self.parts.time_of_day)()
    }

    /// Counts a request that is not a registration.
    fn refuse_other(&self, peer: IpAddr) {
        self.count_refusal(peer, Outcome::Malformed);
    }

    fn count_refusal(&self, peer: IpAddr, outcome: Outcome) {
        self.count_failure(peer);
        self.parts.metrics.count(None, None, outcome, Duration::ZERO);
    }

    /// Counts a failure of a source.
    fn count_failure(&self, peer: IpAddr) {
        self.limits().failed(peer, self.parts.clock.now());
    }

    /// Whether a new connection of `peer` is within the limits.
    fn admits_connection(&self, peer: IpAddr) -> bool {
        let admitted = self.limits().connect(peer, self.parts.clock.now());
        if !admitted {
            self.parts.metrics.count(None, None, Outcome::Limited, Duration::ZERO);
        }
        admitted
    }

    fn limits(&self) -> std::sync::MutexGuard<'_, RateLimits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that the credential is of the pod that the body names. Adds to the claim what else the credential proves.
fn check_sender(sender: &Sender, peer: IpAddr, registration: &mut Registration) -> Result<(), Refusal> {
    let claim = &mut registration.claim;
    let denied = |reason: String| Err(Refusal::Denied(reason));
    let from_pod = claim.ips.iter().any(|ip| ip.to_canonical() == peer.to_canonical());
    let elsewhere = || {
        format!(
            "the connection comes from {peer}, which is not an address of the pod: a shared key or a client certificate \
             proves no pod, so its registrations must come from the pod itself"
        )
    };
    match sender {
        Sender::Pod(pod) => {
            let same =
                pod.namespace == claim.service.namespace() && pod.pod == claim.pod && pod.uid == claim.uid;
            if same {
                Ok(())
            } else {
                denied("the token belongs to another pod than the body names".to_owned())
            }
        }
        Sender::KeyHolder { namespaces } if !namespaces.includes(claim.service.namespace()) => {
            denied(format!("the key is not for the namespace {}", claim.service.namespace()))
        }
        Sender::ServiceAccount { namespace, .. } if namespace != claim.service.namespace() => {
            denied(format!("the certificate is for the namespace {namespace}"))
        }
        Sender::KeyHolder { .. } | Sender::ServiceAccount { .. } if !from_pod => denied(elsewhere()),
        Sender::KeyHolder { .. } => Ok(()),
        Sender::ServiceAccount { name, .. } => {
            claim.service_account = Some(name.clone());
            Ok(())
        }
    }
}

/// Logs why a registration was refused. The log limits repeated messages.
fn log_refusal(refusal: &Refusal, peer: IpAddr, registration: Option<&Registration>) {
    let service = registration.map(|registration| registration.claim.service.to_string()).unwrap_or_default();
    let pod = registration.map_or("", |registration| &registration.claim.pod);
    let outcome = refusal.outcome().as_str();
    match refusal {
        Refusal::Unchecked(reason)
        | Refusal::Unverified(reason)
        | Refusal::Unavailable(reason)
        | Refusal::TooEarly(reason) => {
            tracing::error!(service, pod, %peer, outcome, reason, "cannot check a registration");
        }
        // Three places in the code, since each has a rate limit of its own: a client without a credential must not hide the
        // refusals of pods.
        Refusal::Limited(_) => {
            tracing::warn!(service, pod, %peer, outcome, "limited a registration");
        }
        Refusal::Malformed(_) | Refusal::TooLarge | Refusal::Unauthenticated(_) => {
            tracing::warn!(service, pod, %peer, outcome, reason = %refusal, "rejected a registration");
        }
        Refusal::Denied(_) | Refusal::TooManyPods(_) => {
            tracing::warn!(service, pod, %peer, outcome, reason = %refusal, "refused a registration");
        }
    }
}

impl std::fmt::Debug for RegistrationServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistrationServer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RegistrationParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistrationParts").finish_non_exhaustive()
    }
}

/// The label of a service in metrics.
fn service_label(service: Option<&ServiceId>) -> String {
    service.map_or_else(|| metrics::OTHER.to_owned(), ToString::to_string)
}
