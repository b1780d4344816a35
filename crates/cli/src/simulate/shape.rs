//! Built-in workloads: a step, bursts, a day, sparse calls, and timers.

use std::time::Duration;

use rouse_core::random::{Random, between};
use rouse_core::time::Moment;

use super::args::{Shape, ShapeArgs};
use super::call_trace::{CallTrace, Calls, MINUTE, Placement};

const DAY: Duration = Duration::from_hours(24);

/// The trace of a shape. All services have the same shape, and random numbers of their own.
pub(super) fn call_trace(shape: Shape, args: &ShapeArgs, seed: u64) -> CallTrace {
    let length = args.length.get();
    let mut seeds = Random::new(seed);
    let services = (0..args.services).map(|_| {
        let seed = seeds.next_u64();
        match shape {
            Shape::Step => per_minute(length, seed, |begin| {
                let is_on = begin * 3 >= length && begin * 3 < length * 2;
                if is_on { args.rate } else { 0.0 }
            }),
            Shape::Burst => per_minute(length, seed, |begin| {
                let into = begin.as_nanos() % args.every.get().as_nanos();
                if into < MINUTE.as_nanos() { args.rate } else { 0.0 }
            }),
            Shape::Day => per_minute(length, seed, |begin| {
                let turn = std::f64::consts::TAU * begin.as_secs_f64() / DAY.as_secs_f64();
                // The begin is the night.
                args.rate * (1.0 - turn.cos()) / 2.0
            }),
            Shape::Sparse => sparse(length, args.every.get(), seed),
            Shape::Timers => timer(length, args.every.get(), args.jitter.get(), seed),
        }
    });
    CallTrace {
        name: format!("{} services, shape {shape}", args.services),
        services: services.collect(),
        length,
    }
}

/// Calls at the rate per second that `rate` returns for the begin of each minute.
fn per_minute(length: Duration, seed: u64, rate: impl Fn(Duration) -> f64) -> Calls {
    let minutes = u32::try_from(length.as_secs() / 60).unwrap_or(u32::MAX);
    let counts = (0..minutes).map(|minute| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate is limited to a range that fits"
        )]
        let calls = (rate(MINUTE * minute) * 60.0).round() as u32;
        (minute, calls)
    });
    let counts = counts.filter(|(_, calls)| *calls > 0).collect();
    Calls::PerMinute { counts, placed: Placement::Random, seed }
}

/// Calls without memory: the time to the next has nothing to do with the time since the last.
fn sparse(length: Duration, mean: Duration, seed: u64) -> Calls {
    let mut random = Random::new(seed);
    let mut at = Duration::ZERO;
    let pauses = std::iter::repeat_with(|| {
        #[expect(clippy::cast_precision_loss, reason = "a random share needs no more bits")]
        let share = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        mean.mul_f64(-(1.0 - share).ln())
    });
    let calls = pauses.map_while(|pause| {
        at += pause;
        (at < length).then(|| Moment::ZERO + at)
    });
    Calls::At(calls.collect())
}

/// A call each `every`, up to `jitter` late.
fn timer(length: Duration, every: Duration, jitter: Duration, seed: u64) -> Calls {
    let mut random = Random::new(seed);
    let phase = between(Duration::ZERO, every, random.next_u64());
    let due = (0..u32::MAX).map(|n| every.saturating_mul(n).saturating_add(phase));
    let due = due.take_while(|due| *due < length);
    let mut calls: Vec<Moment> =
        due.map(|due| Moment::ZERO + due + between(Duration::ZERO, jitter, random.next_u64())).collect();
    calls.sort_unstable();
    Calls::At(calls)
}
