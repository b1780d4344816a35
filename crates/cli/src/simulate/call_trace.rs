//! What is replayed: services, and when each is called.

use std::time::Duration;

use rouse_core::random::Random;
use rouse_core::time::Moment;

/// Length of the unit of a trace.
pub(super) const MINUTE: Duration = Duration::from_mins(1);
/// The most arrivals of one minute. More calls than that arrive in groups.
const MOST_ARRIVALS: u32 = 1200;

/// The services of a trace or a shape.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CallTrace {
    /// For the title of tables and pictures.
    pub(super) name: String,
    pub(super) services: Vec<Calls>,
    /// The time from the begin to the end.
    pub(super) length: Duration,
}

/// The calls of one service.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Calls {
    /// As a trace has them: how many in which minute since its begin. Minutes without calls are left out.
    PerMinute { counts: Vec<(u32, u32)>, placed: Placement, seed: u64 },
    /// The moments of all calls, in order.
    At(Vec<Moment>),
}

/// When the calls of a minute come, of which a trace has only the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    /// At equal distances, the first at the begin of the minute: a timer.
    Even,
    /// At random moments.
    Random,
}

/// Calls that come together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) at: Moment,
    pub(super) calls: u32,
}

impl Calls {
    /// All calls in order.
    pub(super) fn arrivals(&self) -> Box<dyn Iterator<Item = Arrival> + '_> {
        match self {
            Self::At(moments) => Box::new(moments.iter().map(|at| Arrival { at: *at, calls: 1 })),
            Self::PerMinute { counts, placed, seed } => Box::new(
                counts.iter().flat_map(|(minute, count)| arrivals_of(*minute, *count, *placed, *seed)),
            ),
        }
    }

    /// How many calls there are.
    pub(super) fn count(&self) -> u64 {
        match self {
            Self::At(moments) => moments.len() as u64,
            Self::PerMinute { counts, .. } => counts.iter().map(|(_, count)| u64::from(*count)).sum(),
        }
    }
}

fn arrivals_of(minute: u32, count: u32, placed: Placement, seed: u64) -> impl Iterator<Item = Arrival> {
    let begin = Moment::ZERO + MINUTE * minute;
    let arrivals = count.min(MOST_ARRIVALS);
    let offsets: Vec<Duration> = match placed {
        Placement::Even => (0..arrivals).map(|n| MINUTE * n / arrivals).collect(),
        Placement::Random => {
            let mut random = Random::new(seed ^ (u64::from(minute) << 20));
            let mut offsets: Vec<Duration> =
                (0..arrivals).map(|_| Duration::from_millis(random.below(60_000) as u64)).collect();
            offsets.sort_unstable();
            offsets
        }
    };
    (0..arrivals).zip(offsets).map(move |(n, offset)| {
        let share = |n: u32| u64::from(count) * u64::from(n) / u64::from(arrivals);
        let calls = share(n + 1) - share(n);
        Arrival { at: begin + offset, calls: u32::try_from(calls).unwrap_or(u32::MAX) }
    })
}
