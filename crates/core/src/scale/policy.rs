//! Autoscaler settings: defaults, allowed ranges, and the check that reports every invalid setting.
//!
//! Settings are checked once, so that no scaling rule has to handle a NaN, a division by zero or an endless window.

use std::fmt;
use std::time::Duration;

use super::idle::{COLD_START_COSTS, IdlePolicy};
use super::schedule::{MAX_PARTS, Schedule};

/// The default concurrency target per pod: that of the KEDA HTTP add-on (`concurrency.targetValue`).
const DEFAULT_ROOM: f64 = 100.0;
const LARGEST: f64 = 1_000_000.0;
const SMALLEST_TARGET: f64 = 0.001;
/// A rate of 1 or less could never scale at all.
const SMALLEST_RATE: f64 = 1.001;
const LONGEST_WINDOW: Duration = Duration::from_hours(1);
const LONGEST_IDLE: Duration = Duration::from_hours(30 * 24);

/// A number in thousandths. Integer arithmetic is exact, so neither the order of reports nor rounding changes the number
/// of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Milli(u64);

impl Milli {
    /// Placeholder for an invalid number. The policy that contains it is discarded.
    const UNUSED: Milli = Milli(1);

    /// `value`, clamped to 0..=1,000,000 and rounded up; `None` if it is NaN or infinite.
    pub(super) fn new(value: f64) -> Option<Self> {
        if !value.is_finite() {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to a range that both types hold"
        )]
        let thousandths = (value.clamp(0.0, LARGEST) * 1000.0).ceil() as u64;
        Some(Self(thousandths))
    }

    /// The whole number `count`, clamped like [`Milli::new`].
    pub(super) fn whole(count: u64) -> Self {
        Self(count.min(1_000_000) * 1000)
    }

    /// The number of thousandths.
    pub(super) fn get(self) -> u128 {
        u128::from(self.0)
    }

    /// `count` times this, rounded up.
    pub(super) fn times(self, count: u32) -> u32 {
        let product = (u128::from(count) * self.get()).div_ceil(1000);
        u32::try_from(product).unwrap_or(u32::MAX)
    }

    /// `count` divided by this, rounded down: for any rate above 1, fewer than `count`.
    pub(super) fn part_of(self, count: u32) -> u32 {
        let quotient = u128::from(count) * 1000 / self.get().max(1);
        u32::try_from(quotient).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for Milli {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1000, self.0 % 1000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{rest:03}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

/// The unchecked settings: the operator's values or the defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaleSettings {
    /// Target of concurrent requests per pod. If `rate` is set too, the larger demand counts.
    pub concurrency: Option<f64>,
    /// Target of requests per second per pod.
    pub rate: Option<f64>,
    /// Hard limit of concurrent requests per pod; 0 = no limit. A concurrency target above it could never be reached, so the
    /// lower of the two counts.
    pub limit: u32,
    /// Fewest pods; 0 allows scaling to zero.
    pub min: u32,
    /// Most pods.
    pub max: u32,
    /// Pods that a newly created service starts with.
    pub initial: u32,
    /// The window over which the load is averaged.
    pub stable_window: Duration,
    /// The window in which a surge is detected.
    pub panic_window: Duration,
    /// A load of this percentage of the ready pods' capacity is a surge.
    pub panic_threshold: u32,
    /// One step scales up to at most the ready pods times this.
    pub max_scale_up_rate: f64,
    /// One step scales down to at least the pods divided by this.
    pub max_scale_down_rate: f64,
    /// Scales to zero after this long without load.
    pub idle_after: Duration,
    /// Whether `idle_after` is fixed, or only used until something better is learned.
    pub idle: IdlePolicy,
    /// The fewest pods at certain times.
    pub schedule: Schedule,
}

impl Default for ScaleSettings {
    fn default() -> Self {
        Self {
            concurrency: Some(DEFAULT_ROOM),
            rate: None,
            limit: 0,
            min: 0,
            max: 100,
            initial: 0,
            stable_window: Duration::from_mins(1),
            panic_window: Duration::from_secs(6),
            panic_threshold: 200,
            max_scale_up_rate: 1000.0,
            max_scale_down_rate: 2.0,
            idle_after: IdlePolicy::Fixed.default_idle_after(),
            idle: IdlePolicy::Fixed,
            schedule: Schedule::default(),
        }
    }
}

/// One setting that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSetting {
    /// The setting's name.
    pub field: &'static str,
    /// The invalid value.
    pub value: String,
    /// The allowed values.
    pub allowed: String,
}

impl fmt::Display for BadSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} is not allowed, expected {}", self.field, self.value, self.allowed)
    }
}

/// Every setting that is not allowed; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct BadPolicy(pub Vec<BadSetting>);

impl fmt::Display for BadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, bad) in self.0.iter().enumerate() {
            write!(f, "{}{bad}", if n == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// [`ScaleSettings`] that were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePolicy {
    pub(super) concurrency: Option<Milli>,
    pub(super) rate: Option<Milli>,
    /// Concurrent requests that one pod should have, also if the target is a rate.
    pub(super) room: Milli,
    pub(super) min: u32,
    pub(super) max: u32,
    pub(super) initial: u32,
    pub(super) stable_window: Duration,
    pub(super) panic_window: Duration,
    pub(super) panic_threshold: u32,
    pub(super) max_scale_up_rate: Milli,
    pub(super) max_scale_down_rate: Milli,
    pub(super) idle_after: Duration,
    pub(super) idle: IdlePolicy,
    pub(super) schedule: Schedule,
}

impl ScalePolicy {
    /// The fewest pods, at any load and at any time.
    pub fn min(&self) -> u32 {
        self.min
    }

    /// The fewest pods at certain times.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }
}

/// The settings that an owner chooses, in one line.
impl fmt::Display for ScalePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "min {}, max {}", self.min, self.max)?;
        if let Some(target) = self.concurrency {
            write!(f, ", {target} concurrent requests per pod")?;
        }
        if let Some(target) = self.rate {
            write!(f, ", {target} requests per second per pod")?;
        }
        match self.idle {
            _ if self.min > 0 => {}
            IdlePolicy::Fixed => write!(f, ", to zero after {:?} without load", self.idle_after)?,
            IdlePolicy::Learned { cold_start_cost } => write!(
                f,
                ", to zero as learned from past gaps (a cold start is worth {cold_start_cost:?} of an idle pod), until then after \
                 {:?} without load",
                self.idle_after
            )?,
        }
        if !self.schedule.is_empty() {
            write!(f, ", at least by the schedule {}", self.schedule)?;
        }
        Ok(())
    }
}

impl TryFrom<&ScaleSettings> for ScalePolicy {
    type Error = BadPolicy;

    fn try_from(raw: &ScaleSettings) -> Result<Self, BadPolicy> {
        let mut check = Check::default();
        if raw.concurrency.is_none() && raw.rate.is_none() {
            check.refuse("target", "none", "a concurrency target, a rate target, or both");
        }
        check.that(raw.max >= 1, "max", raw.max, "1 or more");
        check.that(raw.min <= raw.max, "min", raw.min, format_args!("0 to max, which is {}", raw.max));
        check.that(
            raw.initial <= raw.max,
            "initial",
            raw.initial,
            format_args!("0 to max, which is {}", raw.max),
        );
        let threshold = raw.panic_threshold;
        let sane = (110..=1000).contains(&threshold);
        check.that(sane, "panic-threshold", threshold, "110 to 1000 (percent)");
        let idle = raw.idle_after;
        let sane = !idle.is_zero() && idle <= LONGEST_IDLE;
        check.that(sane, "idle-after", format_args!("{idle:?}"), "more than 0 s, at most 30 days");
        if let IdlePolicy::Learned { cold_start_cost: cost } = raw.idle {
            let sane = COLD_START_COSTS.contains(&cost);
            check.that(sane, "cold-start-cost", format_args!("{cost:?}"), "1 s to 30 days");
        }
        let most = raw.schedule.most();
        check.that(most <= raw.max, "schedule", most, format_args!("at most max, which is {}", raw.max));
        let parts = raw.schedule.parts();
        check.that(
            parts <= MAX_PARTS,
            "schedule",
            format_args!("a schedule of {parts} parts"),
            format_args!("at most {MAX_PARTS} parts"),
        );
        check.window("stable-window", raw.stable_window, Duration::from_secs(6), LONGEST_WINDOW);
        check.window("panic-window", raw.panic_window, Duration::from_secs(2), raw.stable_window);

        let limit = (raw.limit > 0).then(|| f64::from(raw.limit));
        let target = raw.concurrency.map(|target| {
            check.number("concurrency", target, SMALLEST_TARGET);
            limit.map_or(target, |limit| target.min(limit))
        });
        let room = Milli::new(target.or(limit).unwrap_or(DEFAULT_ROOM)).unwrap_or(Milli::UNUSED);
        let policy = Self {
            concurrency: target.map(|_| room),
            rate: raw.rate.map(|rate| check.number("rate", rate, SMALLEST_TARGET)),
            room,
            min: raw.min,
            max: raw.max,
            initial: raw.initial,
            stable_window: raw.stable_window,
            panic_window: raw.panic_window,
            panic_threshold: threshold,
            max_scale_up_rate: check.number("max-scale-up-rate", raw.max_scale_up_rate, SMALLEST_RATE),
            max_scale_down_rate: check.number("max-scale-down-rate", raw.max_scale_down_rate, SMALLEST_RATE),
            idle_after: idle,
            idle: raw.idle,
            schedule: raw.schedule.clone(),
        };
        if check.bad.is_empty() { Ok(policy) } else { Err(BadPolicy(check.bad)) }
    }
}

/// Collects all invalid settings instead of stopping at the first.
#[derive(Default)]
struct Check {
    bad: Vec<BadSetting>,
}

impl Check {
    fn refuse(&mut self, field: &'static str, value: impl fmt::Display, allowed: impl fmt::Display) {
        self.bad.push(BadSetting { field, value: value.to_string(), allowed: allowed.to_string() });
    }

    fn that(
        &mut self,
        holds: bool,
        field: &'static str,
        value: impl fmt::Display,
        allowed: impl fmt::Display,
    ) {
        if !holds {
            self.refuse(field, value, allowed);
        }
    }

    /// A window consists of one-second buckets, so it must be whole seconds.
    fn window(&mut self, field: &'static str, value: Duration, least: Duration, most: Duration) {
        let sane = (least..=most).contains(&value) && value.subsec_nanos() == 0;
        let allowed = format_args!("whole seconds from {least:?} to {most:?}");
        self.that(sane, field, format_args!("{value:?}"), allowed);
    }

    fn number(&mut self, field: &'static str, value: f64, least: f64) -> Milli {
        let allowed = format_args!("a number from {least} to {LARGEST}");
        self.that((least..=LARGEST).contains(&value), field, value, allowed);
        Milli::new(value).unwrap_or(Milli::UNUSED)
    }
}
