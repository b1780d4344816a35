//! Summarises runs into cells, and drops disturbed runs by a rule that is fixed in the code.

use serde::Serialize;

use super::Run;
use crate::stats::Spread;

/// The rule for dropped runs and marked cells.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Rule {
    /// A run is dropped if other processes used more than this share of one core.
    pub(crate) most_foreign_share: f64,
    /// A cell with fewer remaining runs is marked, and also shows the disturbed ones.
    pub(crate) least_runs: usize,
}

impl Rule {
    /// The rule.
    pub(crate) const FIXED: Self = Self { most_foreign_share: 0.15, least_runs: 3 };

    /// Whether a run counts. A run with a failed request did different work.
    fn keeps(&self, run: &Run) -> bool {
        run.failed == 0 && run.foreign_share <= self.most_foreign_share
    }
}

/// One proxy under one load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Cell {
    pub(crate) scenario: &'static str,
    pub(crate) proxy: String,
    /// CPU time per request, in microseconds.
    pub(crate) cpu_us: Spread,
    /// The ratio to the reference, over the rounds that both have.
    pub(crate) ratio: Option<Spread>,
    /// How many runs were kept.
    pub(crate) kept: usize,
    /// Too few runs were kept, so the disturbed ones are shown, too.
    pub(crate) marked: bool,
}

/// The cells, in the order of their first measurement. `reference` is the proxy whose ratio is 1.
pub(crate) fn summarise(runs: &[Run], reference: &str, rule: &Rule) -> Vec<Cell> {
    let mut seen: Vec<(&'static str, &str)> = Vec::new();
    for run in runs {
        let key = (run.scenario, run.proxy.as_str());
        if !seen.contains(&key) {
            seen.push(key);
        }
    }
    let cell = |(scenario, proxy)| {
        let (shown, kept, marked) = shown(runs, scenario, proxy, rule);
        let (beside, _, unsure) = self::shown(runs, scenario, reference, rule);
        let cpu: Vec<f64> = shown.iter().map(|run| run.cpu_us).collect();
        let ratios: Vec<f64> = shown.iter().filter_map(|run| ratio(run, &beside)).collect();
        Some(Cell {
            scenario,
            proxy: proxy.to_owned(),
            cpu_us: Spread::of(&cpu)?,
            ratio: Spread::of(&ratios),
            kept,
            // A ratio is marked if either side is.
            marked: marked || unsure,
        })
    };
    seen.into_iter().filter_map(cell).collect()
}

/// The runs that a cell shows, how many were kept, and whether it is marked.
fn shown<'r>(runs: &'r [Run], scenario: &str, proxy: &str, rule: &Rule) -> (Vec<&'r Run>, usize, bool) {
    let all = runs.iter().filter(|run| run.scenario == scenario && run.proxy == proxy);
    let (kept, dropped): (Vec<&Run>, Vec<&Run>) = all.partition(|run| rule.keeps(run));
    let count = kept.len();
    if count >= rule.least_runs {
        return (kept, count, false);
    }
    let disturbed = dropped.into_iter().filter(|run| run.failed == 0);
    (kept.into_iter().chain(disturbed).collect(), count, true)
}

/// The ratio to the reference in the same round.
fn ratio(run: &Run, reference: &[&Run]) -> Option<f64> {
    let beside = reference.iter().find(|other| other.round == run.round)?;
    (beside.cpu_us > 0.0).then(|| run.cpu_us / beside.cpu_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(proxy: &str, round: u32, cpu_us: f64, foreign_share: f64) -> Run {
        let proxy = proxy.to_owned();
        let (per_second, failed, connections, handshakes) = (1.0, 0, 0, None);
        let scenario = "load";
        Run { round, scenario, proxy, cpu_us, per_second, failed, foreign_share, connections, handshakes }
    }

    fn cell(runs: &[Run], proxy: &str) -> Cell {
        let cells = summarise(runs, "rouse", &Rule::FIXED);
        cells.into_iter().find(|cell| cell.proxy == proxy).unwrap()
    }

    #[test]
    fn a_disturbed_run_is_dropped() {
        let quiet = (0..3).map(|round| run("rouse", round, 10.0, 0.15));
        let runs: Vec<Run> = quiet.chain([run("rouse", 3, 99.0, 0.16)]).collect();
        let cell = cell(&runs, "rouse");
        assert_eq!((cell.cpu_us.max, cell.kept, cell.marked), (10.0, 3, false));
    }

    #[test]
    fn a_run_with_a_failed_request_is_dropped() {
        let mut runs: Vec<Run> = (0..4).map(|round| run("rouse", round, 10.0, 0.0)).collect();
        runs[0].failed = 1;
        assert_eq!(cell(&runs, "rouse").kept, 3);
    }

    #[test]
    fn too_few_runs_mark_the_cell_and_the_disturbed_ones_are_shown_too() {
        let runs = [run("rouse", 0, 10.0, 0.0), run("rouse", 1, 12.0, 0.0), run("rouse", 2, 20.0, 0.9)];
        let cell = cell(&runs, "rouse");
        assert_eq!((cell.cpu_us.count, cell.kept, cell.marked), (3, 2, true));
    }

    #[test]
    fn a_run_with_a_failed_request_is_never_shown() {
        let failed = Run { failed: 1, ..run("rouse", 0, 10.0, 0.0) };
        assert_eq!(summarise(&[failed], "rouse", &Rule::FIXED), []);
    }

    #[test]
    fn ratios_are_between_runs_of_the_same_round() {
        let (ours, theirs) = ([10.0, 20.0, 40.0], [20.0, 60.0, 40.0]);
        let rounds = |name: &'static str, cpu: [f64; 3]| {
            cpu.into_iter().zip(0..).map(move |(cpu, round)| run(name, round, cpu, 0.0))
        };
        let runs: Vec<Run> = rounds("rouse", ours).chain(rounds("peer", theirs)).collect();
        let ratio = cell(&runs, "peer").ratio.unwrap();
        assert_eq!((ratio.min, ratio.median, ratio.max), (1.0, 2.0, 3.0));
        let own = cell(&runs, "rouse").ratio.unwrap();
        assert_eq!((own.min, own.max), (1.0, 1.0));
    }

    #[test]
    fn without_the_reference_there_is_no_ratio() {
        let runs: Vec<Run> = (0..3).map(|round| run("peer", round, 10.0, 0.0)).collect();
        assert_eq!(cell(&runs, "peer").ratio, None);
    }
}
