//! Compares each fixed window with the learned policy: its cost is chosen on the first half of the trace, and both are
//! judged on the second half.
//!
//! The rule of the choice: of the two ratios to the fixed window, that of cold starts and that of idle time, the larger one
//! should be as small as possible in the first half. Nothing of the second half is used.

use std::io::{self, Write};
use std::time::Duration;

use anstyle::{AnsiColor, Style};

use super::policies::Policy;
use super::run::{Outcome, Simulation};
use super::text;
use super::totals::Totals;

const BOLD: Style = Style::new().bold();
const GOOD: Style = AnsiColor::Green.on_default();

/// The fixed windows, in minutes.
const WINDOWS: [u64; 7] = [1, 2, 5, 10, 15, 20, 30];
/// The costs to choose from, in seconds: each is about 1.4 times the one before.
const COSTS: [u64; 18] =
    [30, 42, 60, 84, 120, 180, 240, 300, 420, 600, 840, 1200, 1680, 2400, 3360, 4800, 6600, 9600];

/// All policies that are compared.
pub(super) fn policies() -> Vec<Policy> {
    let fixed = WINDOWS.into_iter().map(|minutes| Policy::Fixed(Duration::from_mins(minutes)));
    let learned = COSTS.into_iter().map(|seconds| Policy::Learned(Duration::from_secs(seconds)));
    fixed.chain(learned).collect()
}

/// A fixed window, and the learned policy that was chosen for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) fixed: Outcome,
    pub(super) learned: Outcome,
}

impl Pair {
    /// Whether the learned policy has fewer cold starts and less idle time in the second half.
    pub(super) fn is_better(&self) -> bool {
        let ([_, fixed], [_, learned]) = (self.fixed.parts, self.learned.parts);
        learned.cold_starts < fixed.cold_starts && learned.idle_pod_nanos < fixed.idle_pod_nanos
    }
}

/// Chooses a learned policy for each fixed one.
pub(super) fn pairs(outcomes: &[Outcome]) -> Vec<Pair> {
    let is_fixed = |outcome: &&Outcome| matches!(outcome.policy, Policy::Fixed(_));
    let (fixed, learned): (Vec<&Outcome>, Vec<&Outcome>) = outcomes.iter().partition(is_fixed);
    let pair = |fixed: &Outcome| {
        let best = learned.iter().min_by(|one, other| {
            worse_ratio(&one.parts[0], &fixed.parts[0])
                .total_cmp(&worse_ratio(&other.parts[0], &fixed.parts[0]))
        });
        best.map(|best| Pair { fixed: *fixed, learned: **best })
    };
    fixed.into_iter().filter_map(pair).collect()
}

fn worse_ratio(one: &Totals, other: &Totals) -> f64 {
    ratios(one, other).into_iter().fold(0.0, f64::max)
}

/// One to the other: cold starts and idle time.
fn ratios(one: &Totals, other: &Totals) -> [f64; 2] {
    #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more digits")]
    let ratio = |one: u128, other: u128| one as f64 / other.max(1) as f64;
    [ratio(one.cold_starts.into(), other.cold_starts.into()), ratio(one.idle_pod_nanos, other.idle_pod_nanos)]
}

/// One row for each fixed window.
pub(super) fn table(out: &mut dyn Write, simulation: &Simulation<'_>, pairs: &[Pair]) -> io::Result<()> {
    text::title(out, simulation)?;
    writeln!(
        out,
        "For each fixed window, the cold-start-cost with the smallest larger ratio in the first half; judged on the second.\n"
    )?;
    let head = "FIXED    LEARNED  COLD STARTS: FIXED   LEARNED  RATIO   IDLE MINUTES: FIXED   LEARNED  RATIO  FEWER OF BOTH";
    writeln!(out, "{BOLD}{head}{BOLD:#}")?;
    for pair in pairs {
        let ([_, fixed], [_, learned]) = (pair.fixed.parts, pair.learned.parts);
        let [cold, idle] = ratios(&learned, &fixed);
        let number =
            |policy: Policy| policy.to_string().split(' ').next_back().unwrap_or_default().to_owned();
        let (style, verdict) = if pair.is_better() { (GOOD, "yes") } else { (Style::new(), "NO") };
        writeln!(
            out,
            "{:<9}{:<9}{:>18}{:>10}{cold:>7.2}{:>22}{:>10}{idle:>7.2}  {style}{verdict}{style:#}",
            number(pair.fixed.policy),
            number(pair.learned.policy),
            text::grouped(fixed.cold_starts),
            text::grouped(learned.cold_starts),
            text::whole(fixed.idle_pod_minutes()),
            text::whole(learned.idle_pod_minutes()),
        )?;
    }
    let better = pairs.iter().filter(|pair| pair.is_better()).count();
    writeln!(
        out,
        "\nThe learned policy has fewer cold starts and less idle time than {better} of {} fixed windows.",
        pairs.len()
    )
}
