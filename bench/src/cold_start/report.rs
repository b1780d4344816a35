//! Formats the cold start results as text.

use std::fmt::Write;

use super::{Percentiles, Report, Series};
use crate::table::columns;

/// The goals for the first byte after the app listened, in milliseconds.
const GOAL_P50: f64 = 5.0;
const GOAL_P90: f64 = 15.0;
/// In the order in which they happen.
const PHASES: [&str; 5] = ["wake", "seen", "ready", "connect", "first_byte"];

pub(super) fn text(delays: &[Report]) -> String {
    delays.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn one(delay: &Report) -> String {
    let mut text = format!(
        "app that listens after {} ms (milliseconds; others took {:.0} % of a core meanwhile)\n",
        delay.delay_ms,
        delay.foreign_share * 100.0
    );
    let rows: Vec<Vec<String>> = delay.series.iter().map(row).chain([goal()]).collect();
    let head = ["", "starts", "after listening p50", "p90", "max", "in all p50", "p90", "max"];
    text += &columns(&head, &rows);
    let phases = PHASES.iter().filter_map(|&phase| Some((phase, delay.phases_ms.get(phase)?)));
    let phases: Vec<String> = phases.map(|(phase, took)| format!("{phase} {:.2}", took.median)).collect();
    // Writing to a string does not fail.
    writeln!(text, "phases in rouse, medians: {}", phases.join(" · ")).ok();
    text
}

fn row(Series { way, count, total, after_listening, .. }: &Series) -> Vec<String> {
    let cells =
        |Percentiles { p50, p90, max }: &Percentiles| [p50, p90, max].map(|value| format!("{value:.2}"));
    let mut row = vec![(*way).to_owned(), count.to_string()];
    row.extend(cells(after_listening));
    row.extend(cells(total));
    row
}

fn goal() -> Vec<String> {
    let cells = ["goal for rouse", "", &format!("{GOAL_P50:.0}"), &format!("{GOAL_P90:.0}"), ""];
    cells.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::stats::Spread;

    #[test]
    fn the_goal_stands_beside_what_was_reached() {
        let percentiles = || Percentiles { p50: 1.0, p90: 2.0, max: 3.0 };
        let series = Series {
            way: "rouse",
            count: 3,
            total: percentiles(),
            after_listening: percentiles(),
            starts: Vec::new(),
        };
        let ready = Spread { median: 7.0, min: 7.0, max: 7.0, count: 1 };
        let phases_ms = BTreeMap::from([("ready".to_owned(), ready)]);
        let text = text(&[Report { delay_ms: 300, series: vec![series], phases_ms, foreign_share: 0.42 }]);
        for part in ["after 300 ms", "42 % of a core", "goal for rouse", "15", "ready 7.00"] {
            assert!(text.contains(part), "{part} in:\n{text}");
        }
    }
}
