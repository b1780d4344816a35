//! Idle policies: what a service does while no request comes.
//!
//! The fixed policy keeps the pods for `idle-after`. The learned policy weighs idle pods against cold starts, by the gaps
//! between requests that it has seen: see [`plan`]. Until it has seen enough of them, it does what the fixed policy does.

mod gap_table;
mod plan;
mod start_time;

use std::ops::RangeInclusive;
use std::time::Duration;

pub use gap_table::{BadState, SHORTEST_GAP, STATE_BYTES};
pub use plan::{IdlePlan, WarmWindow};

use gap_table::{BUCKETS, GapTable, edge};
use plan::CostModel;
use start_time::StartTime;

use crate::time::Moment;

/// What a cold start is worth by default.
pub const DEFAULT_COLD_START_COST: Duration = Duration::from_mins(10);
/// What a cold start may be worth: less is worth nothing.
pub const COLD_START_COSTS: RangeInclusive<Duration> =
    RangeInclusive::new(Duration::from_secs(1), Duration::from_hours(30 * 24));
/// The fewest gaps from which anything is learned, by weight: four, of which the older ones are not quite new.
const ENOUGH: f32 = 3.8;

/// When a service without load goes to zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IdlePolicy {
    /// After `idle-after`.
    #[default]
    Fixed,
    /// When it costs least, as learned from the gaps between requests.
    Learned {
        /// What a cold start is worth: as much as an idle pod for this long.
        cold_start_cost: Duration,
    },
}

impl IdlePolicy {
    /// The `idle-after` of a service that does not name one. For the learned policy, which uses it until it has learned, the
    /// time at which an idle pod has cost as much as a cold start: this is never worse than twice the best.
    pub fn default_idle_after(self) -> Duration {
        match self {
            Self::Fixed => Duration::from_mins(1),
            Self::Learned { cold_start_cost } => cold_start_cost,
        }
    }
}

/// What an idle policy has learned, and what follows from it.
#[derive(Debug, Clone, PartialEq)]
pub struct IdleExplanation {
    /// The gaps that are remembered: from, to, and how many; old ones count as less than one. Empty buckets are left out.
    pub gaps: Vec<(Duration, Duration, f32)>,
    /// How many gaps are remembered.
    pub seen: f32,
    /// How many gaps are needed to learn from them.
    pub needed: f32,
    /// How long a pod is expected to take to become ready.
    pub start_time: Duration,
    /// What is done in a gap.
    pub plan: IdlePlan,
    /// The average cost of a gap with this plan, in time of an idle pod.
    pub cost: Duration,
    /// The same with the fixed policy.
    pub fixed_cost: Duration,
    /// What a cold start is worth.
    pub cold_start_cost: Duration,
}

impl IdleExplanation {
    /// Whether enough gaps are remembered. Otherwise the plan is that of the fixed policy.
    pub fn has_learned(&self) -> bool {
        self.seen >= self.needed
    }
}

/// The memory of the learned policy of one service.
#[derive(Debug, Clone)]
pub(super) struct IdleLearner {
    cold_start_cost: Duration,
    table: GapTable,
    start: StartTime,
    /// The table has enough gaps.
    has_learned: bool,
    /// What is done in the present gap.
    current: Option<CurrentGap>,
}

/// The present gap.
#[derive(Debug, Clone, Copy)]
struct CurrentGap {
    began: Moment,
    plan: IdlePlan,
}

/// What the plan says about a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advice {
    /// Nothing is learned: the fixed policy decides.
    Fixed,
    /// Stay warm until this time of the gap.
    Warm { until: Duration },
    /// Be away.
    Away,
    /// A pod should start now, to be ready in the window.
    Start(WarmWindow),
}

impl IdleLearner {
    pub(super) fn new(cold_start_cost: Duration) -> Self {
        let (table, start) = (GapTable::default(), StartTime::default());
        Self { cold_start_cost, table, start, has_learned: false, current: None }
    }

    pub(super) fn set_cost(&mut self, cold_start_cost: Duration) {
        if self.cold_start_cost != cold_start_cost {
            self.cold_start_cost = cold_start_cost;
            self.current = None;
        }
    }

    /// A gap has ended with a request. `None`: its begin is not known.
    pub(super) fn gap_ended(&mut self, gap: Option<Duration>) {
        self.current = None;
        if let Some(gap) = gap.filter(|gap| *gap >= SHORTEST_GAP) {
            self.table.add(gap);
            self.has_learned = self.table.total() >= ENOUGH;
        }
    }

    /// A pod took this long from the decision to start it until it was ready, or until it was given up.
    pub(super) fn started(&mut self, took: Duration) {
        self.start.observe(took);
    }

    /// Makes the plan for the gap that began at `began`, if it is not made yet.
    pub(super) fn plan_gap(&mut self, began: Moment) {
        if self.current.is_none_or(|gap| gap.began != began) {
            self.current = self.has_learned.then(|| CurrentGap { began, plan: self.model().cheapest() });
        }
    }

    fn model(&self) -> CostModel {
        CostModel::new(&self.table, self.cold_start_cost, self.start.get())
    }

    /// What to do now, in the gap that began at `began`.
    pub(super) fn advice(&self, began: Moment, now: Moment) -> Advice {
        let plan = match self.current {
            Some(gap) if gap.began == began => gap.plan,
            // Not planned yet: it is too short.
            _ if self.has_learned => IdlePlan::fixed(SHORTEST_GAP),
            _ => return Advice::Fixed,
        };
        let idle = now.since(began);
        if idle < plan.stay {
            return Advice::Warm { until: plan.stay };
        }
        match plan.back {
            Some(window) if self.start_of(window) <= idle && idle < window.to => Advice::Start(window),
            _ => Advice::Away,
        }
    }

    /// When a pod must start to be ready in the window.
    fn start_of(&self, window: WarmWindow) -> Duration {
        window.from.saturating_sub(self.start.get())
    }

    /// When the advice changes.
    pub(super) fn changes(&self) -> impl Iterator<Item = Moment> {
        let times = self.current.map(|CurrentGap { began, plan }| {
            let back = plan.back.map(|window| [self.start_of(window), window.to]);
            let all = [Some(plan.stay), back.map(|[from, _]| from), back.map(|[_, to]| to)];
            all.map(|time| time.map(|time| began + time))
        });
        times.into_iter().flatten().flatten()
    }

    pub(super) fn report(&self, idle_after: Duration) -> IdleExplanation {
        let model = self.model();
        let fixed = IdlePlan::fixed(idle_after);
        let plan = if self.has_learned { model.cheapest() } else { fixed };
        let weights = self.table.weights().iter().enumerate().filter(|(_, weight)| **weight > 0.0);
        IdleExplanation {
            gaps: weights.map(|(bucket, weight)| (edge(bucket), edge(bucket + 1), *weight)).collect(),
            seen: self.table.total(),
            needed: ENOUGH,
            start_time: self.start.get(),
            plan,
            cost: model.cost(plan),
            fixed_cost: model.cost(fixed),
            cold_start_cost: self.cold_start_cost,
        }
    }

    /// `None`: nothing was learned.
    pub(super) fn to_bytes(&self) -> Option<[u8; STATE_BYTES]> {
        let is_new = self.table == GapTable::default() && self.start == StartTime::default();
        (!is_new).then(|| self.table.to_bytes(self.start))
    }

    /// Replaces what was learned.
    pub(super) fn restore(&mut self, bytes: &[u8]) -> Result<(), BadState> {
        (self.table, self.start) = GapTable::from_bytes(bytes)?;
        self.has_learned = self.table.total() >= ENOUGH;
        self.current = None;
        Ok(())
    }
}

const _: () = assert!(BUCKETS / 2 + 6 == STATE_BYTES);
