//! Validates the messages of one report stream, as a state machine: their order, size and rate. Time is passed in.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use prost::Message as _;
use rouse_core::budget::{Rate, TokenBucket};
use rouse_core::endpoint::ServiceId;
use rouse_core::load_meter::{LoadKey, LoadSample};
use rouse_core::scale::{EnvoyId, EnvoyState, EnvoyUpdate, LoadUpdate, MAX_ENVOYS, MAX_KEYS};
use rouse_core::time::Moment;

use super::wire::{self, BadEntry, MAX_ENTRIES, ReporterRole, StatePart};
use crate::proto::report::reporter_message::Kind;
use crate::proto::report::{Hello, Loads, ReporterMessage, Role};

/// The longest version of a sender that is kept.
const MAX_VERSION: usize = 64;

/// What a reporter says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReporterHello {
    /// Its version, for people. Printable, and not long.
    pub version: String,
    /// What it is.
    pub role: ReporterRole,
    pub(super) boot: u64,
}

/// What a stream said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamEvent {
    /// Who it is.
    Hello(ReporterHello),
    /// Part of a complete state, whose rest is not here yet; or a kind of message that this version does not know.
    Nothing,
    /// Its load.
    Loads {
        /// The readings.
        update: LoadUpdate,
        /// What is prepared for zero may have changed: see [`StreamProtocol::parked`].
        parked: bool,
        /// Its Envoys that have changed.
        envoys: EnvoyUpdate,
    },
}

/// Why a message ends its stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StreamViolation {
    /// It is no message, or an entry cannot be true.
    #[error("{0}")]
    Malformed(String),
    /// It may not come now.
    #[error("{0}")]
    OutOfOrder(&'static str),
    /// It has too many entries.
    #[error("a message has {0} entries; at most {MAX_ENTRIES} are allowed: split it")]
    TooManyEntries(usize),
    /// The complete state has too many entries.
    #[error("a complete state has more than {MAX_KEYS} services and routes")]
    TooManyKeys,
    /// It has too many Envoys.
    #[error("more than {MAX_ENVOYS} Envoys")]
    TooManyEnvoys,
    /// Messages come too fast.
    #[error("more than {} messages per second; at most one in 10 ms is expected", RATE.per_second)]
    TooFast,
}

impl From<BadEntry> for StreamViolation {
    fn from(error: BadEntry) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// How many messages one stream may send. The burst covers a complete state, and what arrives at once after the controller stood
/// still for some seconds.
const RATE: Rate = Rate { per_second: 150, burst: 1500 };

/// Reads the messages of one stream.
#[derive(Debug)]
pub(crate) struct StreamProtocol {
    bucket: TokenBucket,
    boot: Option<u64>,
    sent_at: Moment,
    stage: Stage,
    parked: BTreeMap<ServiceId, u64>,
    envoys: BTreeSet<EnvoyId>,
}

#[derive(Debug)]
enum Stage {
    /// A complete state is expected, or is being received.
    Complete(Box<PartialState>),
    Changes,
}

/// The parts of a complete state so far.
#[derive(Debug, Default)]
struct PartialState {
    began: bool,
    samples: HashMap<LoadKey, LoadSample>,
    parked: BTreeMap<ServiceId, u64>,
    envoys: BTreeMap<EnvoyId, EnvoyState>,
}

/// The entries of one message.
struct Entries {
    samples: Vec<LoadSample>,
    parked: Vec<(ServiceId, u64)>,
    envoys: Vec<(EnvoyId, Option<EnvoyState>)>,
}

impl StreamProtocol {
    /// A stream that has sent nothing.
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            bucket: TokenBucket::new(RATE, now),
            boot: None,
            sent_at: Moment::ZERO,
            stage: Stage::Complete(Box::default()),
            parked: BTreeMap::new(),
            envoys: BTreeSet::new(),
        }
    }

    /// Whether a complete state was received, and none is being received.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.stage, Stage::Changes)
    }

    /// The services that are prepared for zero, each with the id of the `PrepareZero` that is done.
    pub(crate) fn parked(&self) -> &BTreeMap<ServiceId, u64> {
        &self.parked
    }

    /// Takes an encoded message.
    pub(crate) fn take_encoded(
        &mut self,
        message: &[u8],
        now: Moment,
    ) -> Result<StreamEvent, StreamViolation> {
        let message = ReporterMessage::decode(message)
            .map_err(|error| StreamViolation::Malformed(error.to_string()))?;
        self.take(message, now)
    }

    /// Takes a message.
    pub(super) fn take(
        &mut self,
        message: ReporterMessage,
        now: Moment,
    ) -> Result<StreamEvent, StreamViolation> {
        if !self.bucket.try_take(now) {
            return Err(StreamViolation::TooFast);
        }
        match (message.kind, self.boot) {
            (None, _) => Ok(StreamEvent::Nothing),
            (Some(Kind::Hello(hello)), None) => {
                self.boot = Some(hello.boot);
                Ok(StreamEvent::Hello(greeting(&hello)))
            }
            (Some(Kind::Hello(_)), Some(_)) => Err(StreamViolation::OutOfOrder("a second hello")),
            (Some(Kind::Loads(_)), None) => Err(StreamViolation::OutOfOrder("loads before hello")),
            (Some(Kind::Loads(loads)), Some(boot)) => self.loads(loads, boot, now),
        }
    }

    fn loads(&mut self, loads: Loads, boot: u64, now: Moment) -> Result<StreamEvent, StreamViolation> {
        let entries = loads.loads.len() + loads.parked.len() + loads.envoys.len();
        if entries > MAX_ENTRIES {
            return Err(StreamViolation::TooManyEntries(entries));
        }
        let (sent_at, part) = (wire::moment(loads.sent_at_micros), StatePart::of(&loads));
        if sent_at < self.sent_at {
            return Err(StreamViolation::OutOfOrder("the sender's clock went back"));
        }
        self.sent_at = sent_at;
        let samples = loads.loads.into_iter().map(|load| wire::sample(load, sent_at));
        let samples: Vec<LoadSample> = samples.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        let parked = loads.parked.into_iter().map(|parked| Ok((wire::service(&parked.service)?, parked.id)));
        let parked: Vec<(ServiceId, u64)> = parked.collect::<Result<_, BadEntry>>()?;
        let envoys = loads.envoys.iter().map(|envoy| wire::envoy_state(envoy, now));
        let envoys = envoys.collect::<Result<_, BadEntry>>()?;
        let entries = Entries { samples, parked, envoys };
        match part {
            StatePart::Changes => self.changes(boot, entries),
            StatePart::More | StatePart::Last => self.part(boot, part, entries),
        }
    }

    fn changes(&mut self, boot: u64, entries: Entries) -> Result<StreamEvent, StreamViolation> {
        match &self.stage {
            Stage::Complete(state) if state.began => {
                return Err(StreamViolation::OutOfOrder("changes before the end of the complete state"));
            }
            Stage::Complete(_) => {
                return Err(StreamViolation::OutOfOrder("changes before the complete state"));
            }
            Stage::Changes => {}
        }
        let Entries { samples, parked, envoys } = entries;
        let changed = !parked.is_empty();
        for (service, id) in parked {
            match id {
                0 => self.parked.remove(&service),
                id => self.parked.insert(service, id),
            };
        }
        if self.parked.len() > MAX_KEYS {
            return Err(StreamViolation::TooManyKeys);
        }
        for (id, state) in &envoys {
            match state {
                Some(_) => self.envoys.insert(id.clone()),
                None => self.envoys.remove(id),
            };
        }
        if self.envoys.len() > MAX_ENVOYS {
            return Err(StreamViolation::TooManyEnvoys);
        }
        let envoys = EnvoyUpdate { complete: false, envoys };
        let update = LoadUpdate { boot, complete: false, samples };
        Ok(StreamEvent::Loads { update, parked: changed, envoys })
    }

    fn part(&mut self, boot: u64, part: StatePart, entries: Entries) -> Result<StreamEvent, StreamViolation> {
        if let Stage::Changes = self.stage {
            self.stage = Stage::Complete(Box::default());
        }
        let Stage::Complete(state) = &mut self.stage else { return Ok(StreamEvent::Nothing) };
        let Entries { samples, parked, envoys } = entries;
        state.began = true;
        state.samples.extend(samples.into_iter().map(|sample| (sample.key.clone(), sample)));
        state.parked.extend(parked.into_iter().filter(|(_, id)| *id != 0));
        if state.samples.len() > MAX_KEYS || state.parked.len() > MAX_KEYS {
            return Err(StreamViolation::TooManyKeys);
        }
        state.envoys.extend(envoys.into_iter().filter_map(|(id, envoy)| Some((id, envoy?))));
        if state.envoys.len() > MAX_ENVOYS {
            return Err(StreamViolation::TooManyEnvoys);
        }
        if part == StatePart::More {
            return Ok(StreamEvent::Nothing);
        }
        let PartialState { samples, parked, envoys, .. } = std::mem::take(&mut **state);
        self.stage = Stage::Changes;
        self.parked = parked;
        self.envoys = envoys.keys().cloned().collect();
        let envoys = envoys.into_iter().map(|(id, state)| (id, Some(state))).collect();
        let envoys = EnvoyUpdate { complete: true, envoys };
        let samples = samples.into_values().collect();
        let update = LoadUpdate { boot, complete: true, samples };
        Ok(StreamEvent::Loads { update, parked: true, envoys })
    }
}

fn greeting(hello: &Hello) -> ReporterHello {
    let version = hello.version.chars().filter(|letter| !letter.is_control()).take(MAX_VERSION).collect();
    let role = match hello.role() {
        Role::Xds => ReporterRole::Xds,
        Role::Gateway | Role::Unspecified => ReporterRole::Gateway,
    };
    ReporterHello { version, role, boot: hello.boot }
}
