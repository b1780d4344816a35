//! The results as JSON.

use std::io::{self, Write};

use serde::Serialize;

use super::run::Outcome;

#[derive(Serialize)]
struct Results {
    policies: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    policy: String,
    cold_starts: u64,
    waited_seconds: f64,
    pod_minutes: f64,
    idle_pod_minutes: f64,
}

/// One document.
pub(super) fn write(out: &mut dyn Write, outcomes: &[Outcome]) -> io::Result<()> {
    let row = |Outcome { policy, parts: [_, totals] }: &Outcome| Row {
        policy: policy.to_string(),
        cold_starts: totals.cold_starts,
        waited_seconds: rounded(totals.waited_seconds()),
        pod_minutes: rounded(totals.pod_minutes()),
        idle_pod_minutes: rounded(totals.idle_pod_minutes()),
    };
    let results = Results { policies: outcomes.iter().map(row).collect() };
    serde_json::to_writer_pretty(&mut *out, &results)?;
    writeln!(out)
}

/// Three digits after the point.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
