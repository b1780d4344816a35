//! The messages of the report channel ↔ the types of core.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::{LoadKey, LoadSample};
use rouse_core::scale::{EnvoyId, EnvoyLoad, EnvoyServices, EnvoyState, MAX_ENVOY_NAME, MAX_ENVOY_SERVICES};
use rouse_core::time::Moment;

use crate::proto::report::load::Key;
use crate::proto::report::{
    ControllerMessage, Envoy, EnvoyState as WireState, Load, Loads, Parked, controller_message,
};

/// The longest message that a controller accepts, in bytes. Decoded, it may need some forty times as much for a moment.
pub(super) const MAX_MESSAGE: usize = 256 * 1024;
/// The most entries of a message that a controller accepts.
pub(super) const MAX_ENTRIES: usize = 4096;
/// What a reporter puts into one message: well below what a controller accepts. Few in unit tests, so that their states have
/// several parts.
const CHUNK_BYTES: usize = 128 * 1024;
const CHUNK_ENTRIES: usize = if cfg!(test) { 3 } else { 2048 };
/// The longest name of a route, in bytes: namespace and name of a Kubernetes object have less.
const MAX_ROUTE_NAME: usize = 512;

/// What a reporter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReporterRole {
    /// A gateway.
    Gateway,
    /// An xds replica, which reports the load that Envoys send past the gateways.
    Xds,
}

/// An entry of a message cannot be true.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadEntry {
    #[error("{0:?} is not the name of a Service: expected NAMESPACE/NAME")]
    Service(String),
    #[error("a route has a name that is empty, has more than {MAX_ROUTE_NAME} bytes or control characters")]
    Route,
    #[error(
        "an Envoy has a SAN or a node id of more than {MAX_ENVOY_NAME} bytes or with control characters, or more than \
         {MAX_ENVOY_SERVICES} services"
    )]
    Envoy,
    #[error(
        "a meter was read {age} µs before the message was sent, and the sender's clock shows only {clock} µs"
    )]
    Age { age: u64, clock: u64 },
}

/// A moment of a reporter's clock, in microseconds.
pub(super) fn micros(moment: Moment) -> u64 {
    moment.as_nanos() / 1000
}

/// The moment that a reporter's clock shows.
pub(super) fn moment(micros: u64) -> Moment {
    Moment::ZERO + Duration::from_micros(micros)
}

/// The reading in a message that is sent at `sent_at`.
pub(super) fn load(sample: &LoadSample, sent_at: Moment) -> Load {
    let key = match &sample.key {
        LoadKey::Service(id) => Key::Service(id.to_string()),
        LoadKey::Route(name) => Key::Route(name.to_string()),
    };
    Load {
        key: Some(key),
        requests: sample.requests,
        busy_micros: u64::try_from(sample.busy.as_micros()).unwrap_or(u64::MAX),
        in_flight: sample.present.saturating_sub(sample.held),
        held: sample.held,
        age_micros: micros(sent_at).saturating_sub(micros(sample.at)),
    }
}

/// The reading of an entry. `None`: a kind of key that this version does not know.
pub(super) fn sample(load: Load, sent_at: Moment) -> Result<Option<LoadSample>, BadEntry> {
    let key = match load.key {
        None => return Ok(None),
        Some(Key::Service(name)) => LoadKey::Service(service(&name)?),
        Some(Key::Route(name)) => LoadKey::Route(route(&name)?),
    };
    let clock = micros(sent_at);
    let at = clock.checked_sub(load.age_micros).ok_or(BadEntry::Age { age: load.age_micros, clock })?;
    Ok(Some(LoadSample {
        key,
        at: moment(at),
        requests: load.requests,
        busy: Duration::from_micros(load.busy_micros),
        present: load.in_flight.saturating_add(load.held),
        held: load.held,
    }))
}

/// The Service that a message names.
pub(super) fn service(name: &str) -> Result<ServiceId, BadEntry> {
    name.parse().map_err(|_| BadEntry::Service(name.chars().take(MAX_ROUTE_NAME).collect()))
}

fn route(name: &str) -> Result<Arc<str>, BadEntry> {
    let allowed = (1..=MAX_ROUTE_NAME).contains(&name.len()) && !name.chars().any(char::is_control);
    if allowed { Ok(name.into()) } else { Err(BadEntry::Route) }
}

/// What an xds replica knows of an Envoy, in a message that is sent at `sent_at`. `None`: it is not known any more.
fn envoy(id: &EnvoyId, state: Option<&EnvoyState>, sent_at: Moment) -> Envoy {
    let (state_code, silent_micros) = match state.map(|state| state.load) {
        None => (WireState::Gone, 0),
        Some(EnvoyLoad::Reported) => (WireState::Reported, 0),
        Some(EnvoyLoad::Silent { since }) => {
            (WireState::Silent, micros(sent_at).saturating_sub(micros(since)))
        }
    };
    let (all_services, services) = match state.map(|state| &state.services) {
        None => (false, Vec::new()),
        Some(EnvoyServices::All) => (true, Vec::new()),
        Some(EnvoyServices::Named(named)) => (false, named.iter().map(ToString::to_string).collect()),
    };
    Envoy {
        san: id.san.to_string(),
        node: id.node.to_string(),
        state: state_code.into(),
        silent_micros,
        all_services,
        services,
    }
}

/// What an entry says of an Envoy, heard at `now`.
pub(super) fn envoy_state(envoy: &Envoy, now: Moment) -> Result<(EnvoyId, Option<EnvoyState>), BadEntry> {
    let is_name = |text: &str| text.len() <= MAX_ENVOY_NAME && !text.chars().any(char::is_control);
    if !is_name(&envoy.san) || !is_name(&envoy.node) || envoy.services.len() > MAX_ENVOY_SERVICES {
        return Err(BadEntry::Envoy);
    }
    let id = EnvoyId::new(&envoy.san, &envoy.node);
    let load = match envoy.state() {
        WireState::Gone => return Ok((id, None)),
        WireState::Reported => EnvoyLoad::Reported,
        WireState::Silent | WireState::Unspecified => {
            let silent = Duration::from_micros(envoy.silent_micros);
            EnvoyLoad::Silent { since: Moment::ZERO + now.since(Moment::ZERO).saturating_sub(silent) }
        }
    };
    let services = if envoy.all_services {
        EnvoyServices::All
    } else {
        EnvoyServices::Named(envoy.services.iter().map(|name| service(name)).collect::<Result<_, _>>()?)
    };
    Ok((id, Some(EnvoyState { load, services })))
}

/// A message of a controller.
pub(super) fn command(kind: controller_message::Kind) -> ControllerMessage {
    ControllerMessage { kind: Some(kind) }
}

/// A message that is being filled.
#[derive(Debug)]
pub(super) struct Chunk {
    loads: Loads,
    bytes: usize,
}

impl Chunk {
    /// An empty message, sent at `sent_at`.
    pub(super) fn new(sent_at: Moment) -> Self {
        let loads = Loads { sent_at_micros: micros(sent_at), ..Loads::default() };
        Self { loads, bytes: 0 }
    }

    /// Adds a reading.
    pub(super) fn add_load(&mut self, sample: &LoadSample) {
        let load = load(sample, moment(self.loads.sent_at_micros));
        self.bytes += load.encoded_len() + ENTRY_HEAD;
        self.loads.loads.push(load);
    }

    /// Adds what is prepared for zero.
    pub(super) fn add_parked(&mut self, service: &ServiceId, id: Option<u64>) {
        let parked = Parked { service: service.to_string(), id: id.unwrap_or_default() };
        self.bytes += parked.encoded_len() + ENTRY_HEAD;
        self.loads.parked.push(parked);
    }

    /// Adds an Envoy.
    pub(super) fn add_envoy(&mut self, id: &EnvoyId, state: Option<&EnvoyState>) {
        let envoy = envoy(id, state, moment(self.loads.sent_at_micros));
        self.bytes += envoy.encoded_len() + ENTRY_HEAD;
        self.loads.envoys.push(envoy);
    }

    /// Whether it should not get more.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= CHUNK_BYTES || self.len() >= CHUNK_ENTRIES
    }

    /// How many entries it has.
    pub(super) fn len(&self) -> usize {
        self.loads.loads.len() + self.loads.parked.len() + self.loads.envoys.len()
    }

    /// The message, as a part of the complete state or as changes.
    pub(super) fn into_loads(self, part: StatePart) -> Loads {
        let (complete, continues) = match part {
            StatePart::Changes => (false, false),
            StatePart::More => (true, true),
            StatePart::Last => (true, false),
        };
        Loads { complete, continues, ..self.loads }
    }
}

/// The field number and the length before an entry.
const ENTRY_HEAD: usize = 4;

/// What a message says about the state of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatePart {
    /// What changed.
    Changes,
    /// A part of the complete state, and another one follows.
    More,
    /// The last part of the complete state.
    Last,
}

impl StatePart {
    /// What a message with these fields is.
    pub(super) fn of(loads: &Loads) -> Self {
        match (loads.complete, loads.continues) {
            (false, _) => Self::Changes,
            (true, true) => Self::More,
            (true, false) => Self::Last,
        }
    }
}
