//! The push client of the sidecar, built from the settings: where it registers, its credential and what it says about the pod.

use std::io::{self, Read};
use std::path::Path;

use rouse_config::settings::Values;
use rouse_core::endpoint::{PodUid, ServiceId};
use rouse_core::merge::PushEvent;
use rouse_net::auth::{KeyScope, SharedKey};
use rouse_net::clock::TokioClock;
use rouse_net::random::system_seed;
use rouse_net::tls::{Identity, Pem, Roots};
use rouse_register::client::{
    GatewayUrl, PodClaims, PushClient, PushClientSettings, PushCredential, PushReporter, client,
};

use super::settings::{
    NamedPort, POD_IPS, POD_NAME, POD_NAMESPACE, POD_UID, PORT, PushTarget, REGISTER, REGISTER_CA,
    REGISTER_CLIENT_CERT, REGISTER_CLIENT_KEY, REGISTER_KEY, REGISTER_NAMESPACE, REGISTER_TOKEN, SERVICE,
};
use crate::failure::CommandError;
use crate::process::time_of_day;

/// The id of a key from standard input: `rouse up` makes a key for each of its runs.
const RUN_KEY: &str = "run";
/// The longest key, in bytes.
const MOST_KEY_BYTES: u64 = 4096;

/// Where the sidecar registers: the setting, or else the gateways of the namespace.
pub(super) fn target(values: &Values) -> PushTarget {
    values.get(&REGISTER).unwrap_or_else(|| {
        let default = GatewayUrl::of_namespace(&values.get(&REGISTER_NAMESPACE));
        // Cannot fail: the namespace is a DNS label.
        default.map_or(PushTarget::Off, PushTarget::At)
    })
}

/// The settings of the push client, with its files read.
#[derive(Debug)]
pub(super) struct PushSettings(Option<PushClientSettings>);

impl PushSettings {
    /// Reads the files that the settings name.
    pub(super) fn open(values: &Values) -> Result<Self, CommandError> {
        let PushTarget::At(gateways) = target(values) else { return Ok(Self(None)) };
        let identity = values.get(&REGISTER_CLIENT_CERT).zip(values.get(&REGISTER_CLIENT_KEY));
        let identity = identity.map(|(chain, key)| Identity { chain: Pem::File(chain), key: Pem::File(key) });
        let roots = values.get(&REGISTER_CA).map_or(Roots::System, |ca| Roots::Pem(vec![Pem::File(ca)]));
        let tls = gateways.tls(roots, identity);
        let settings =
            PushClientSettings { gateways, credential: credential(values)?, tls, pod: claims(values)? };
        Ok(Self(Some(settings)))
    }

    /// The client. Without push, a reporter that tells no gateway.
    pub(super) fn client(self, clock: TokioClock) -> Result<(Reporter, Option<PushClient>), CommandError> {
        let Some(settings) = self.0 else { return Ok((Reporter(None), None)) };
        let made = client(settings, clock, system_seed(), time_of_day);
        let (reporter, client) =
            made.map_err(|error| CommandError::Input(format!("push cannot start: {error}")))?;
        Ok((Reporter(Some(reporter)), Some(client)))
    }
}

/// Tells the gateways the state of the pod, if push is on.
#[derive(Debug, Clone)]
pub(super) struct Reporter(Option<PushReporter>);

impl Reporter {
    /// Reports an event. Never waits.
    pub(super) fn report(&self, event: PushEvent) {
        if let Some(reporter) = &self.0 {
            reporter.report(event);
        }
    }
}

fn credential(values: &Values) -> Result<PushCredential, CommandError> {
    if let Some(token) = values.get(&REGISTER_TOKEN) {
        return Ok(PushCredential::Token(token));
    }
    let Some(path) = values.get(&REGISTER_KEY) else { return Ok(PushCredential::Certificate) };
    let unusable = |error: String| CommandError::Input(format!("register-key: {error}"));
    if path != Path::new("-") {
        // A mistake stops the start. Later, the key is read again for each request.
        SharedKey::read(&path).map_err(|error| unusable(error.to_string()))?;
        return Ok(PushCredential::KeyFile(path));
    }
    let mut secret = Vec::new();
    let read = io::stdin().lock().take(MOST_KEY_BYTES).read_to_end(&mut secret);
    read.map_err(|error| unusable(format!("cannot read standard input: {error}")))?;
    let key = SharedKey::new(RUN_KEY, &secret, KeyScope::All);
    key.map(PushCredential::SharedKey).map_err(|error| unusable(error.to_string()))
}

/// What the sidecar says about its pod. The settings are complete: `check` has made sure.
fn claims(values: &Values) -> Result<PodClaims, CommandError> {
    let (namespace, service) =
        (values.get(&POD_NAMESPACE).unwrap_or_default(), values.get(&SERVICE).unwrap_or_default());
    let service = ServiceId::new(&namespace, &service)
        .map_err(|error| CommandError::Input(format!("pod-namespace and service: {error}")))?;
    let ports = values.get(&PORT).into_iter().map(|NamedPort { name, number }| (name, number));
    Ok(PodClaims {
        service,
        pod: values.get(&POD_NAME).unwrap_or_default(),
        uid: PodUid::new(&values.get(&POD_UID).unwrap_or_default()),
        ips: values.get(&POD_IPS),
        ports: ports.collect(),
    })
}
