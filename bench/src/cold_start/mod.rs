//! Cold start latency: through `rouse up`, and for an app started by hand.
//!
//! The result is the time from the moment at which the app listened to the client's first byte: before that, no proxy
//! could have answered.

mod by_hand;
mod report;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::args::{ColdStart as Ask, Format};
use crate::clock::Stopwatch;
use crate::proc::{busy_time, our_time};
use crate::rouse::{App, Rouse, binary};
use crate::stats::{Spread, float, percentile};
use crate::{Result, http};
use by_hand::{Way, by_hand};

const HOST: &str = "app.bench";

/// One start, in milliseconds.
#[derive(Debug, Clone, Copy, Serialize)]
struct Start {
    /// From the request, by hand from the start of the process, to the first byte.
    total: f64,
    /// From the moment at which the app listened to the first byte.
    after_listening: f64,
}

impl Start {
    /// From timestamps in microseconds. The body of the response is the moment at which the app listened.
    fn new(began: u64, first_byte: u64, body: &str) -> Result<Self> {
        let listened: u64 = body.trim().parse().map_err(|_| format!("the app answered {body:?}"))?;
        let millis = |from: u64| float(first_byte.saturating_sub(from)) / 1e3;
        Ok(Self { total: millis(began), after_listening: millis(listened) })
    }
}

/// Statistics of the starts of one kind, in milliseconds.
#[derive(Debug, Serialize)]
struct Series {
    way: &'static str,
    count: usize,
    total: Percentiles,
    after_listening: Percentiles,
    starts: Vec<Start>,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    max: f64,
}

impl Percentiles {
    fn of(values: &[f64]) -> Option<Self> {
        let at = |percent| percentile(values, percent);
        Some(Self { p50: at(50)?, p90: at(90)?, max: at(100)? })
    }
}

impl Series {
    fn of(way: &'static str, starts: &[Start]) -> Result<Self> {
        let totals: Vec<f64> = starts.iter().map(|start| start.total).collect();
        let after: Vec<f64> = starts.iter().map(|start| start.after_listening).collect();
        let none = || format!("{way}: nothing was measured");
        Ok(Self {
            way,
            count: starts.len(),
            total: Percentiles::of(&totals).ok_or_else(none)?,
            after_listening: Percentiles::of(&after).ok_or_else(none)?,
            starts: starts.to_vec(),
        })
    }
}

/// All starts with one delay of the app.
#[derive(Debug, Serialize)]
struct Report {
    delay_ms: u64,
    series: Vec<Series>,
    /// The phases that Rouse reports, in milliseconds.
    phases_ms: BTreeMap<String, Spread>,
    /// The share of one core that other processes used meanwhile.
    foreign_share: f64,
}

/// A cold start in the admin API.
#[derive(Debug, Deserialize)]
struct Told {
    outcome: String,
    phases_us: BTreeMap<String, u64>,
}

/// Measures and prints.
pub(crate) fn run(ask: &Ask) -> Result<()> {
    let rouse = binary(ask.common.rouse.as_deref())?;
    let delays = ask.delay_ms.iter().map(|&delay| one(ask, &rouse, delay)).collect::<Result<Vec<_>>>()?;
    match ask.common.output {
        Format::Text => print!("{}", report::text(&delays)),
        Format::Json => println!("{}", serde_json::to_string_pretty(&delays)?),
    }
    Ok(())
}

fn one(ask: &Ask, rouse: &Path, delay: u64) -> Result<Report> {
    let (began, busy, ours) = (Stopwatch::start(), busy_time()?, our_time());
    eprintln!("app that listens after {delay} ms: {} cold starts through rouse up", ask.count);
    let (starts, phases_ms) = through_rouse(rouse, delay, ask.count, false)?;
    let mut series = vec![Series::of("rouse", &starts)?];
    eprintln!("app that listens after {delay} ms: {} cold starts of pods with a sidecar", ask.count);
    series.push(Series::of("rouse, sidecar", &through_rouse(rouse, delay, ask.count, true)?.0)?);
    for (way, count) in [(Way::Loop, ask.count), (Way::Retry, ask.count.min(ask.retries))] {
        eprintln!("app that listens after {delay} ms: {count} starts by hand, {}", way.name());
        let starts = (0..count).map(|_| by_hand(way, delay)).collect::<Result<Vec<_>>>()?;
        if !starts.is_empty() {
            series.push(Series::of(way.name(), &starts)?);
        }
    }
    let foreign = busy_time()?.since(busy).without(our_time().since(ours));
    let foreign_share = foreign.micros() / 1e6 / began.elapsed().as_secs_f64();
    Ok(Report { delay_ms: delay, series, phases_ms, foreign_share })
}

fn through_rouse(
    binary: &Path,
    delay: u64,
    count: u32,
    sidecar: bool,
) -> Result<(Vec<Start>, BTreeMap<String, Spread>)> {
    let app = App {
        name: "app".to_owned(),
        command: vec![std::env::current_exe()?.display().to_string(), "app".to_owned()],
        env: vec![("START_DELAY_MS", delay.to_string())],
        hosts: vec![HOST.to_owned()],
        h2c: false,
        sidecar,
        pods: 0,
    };
    let rouse = Rouse::start(binary, &[app], None, &[])?;
    let mut starts = Vec::new();
    for _ in 0..count {
        rouse.to_zero("app")?;
        let answer = http::get(rouse.address, HOST, "/")?;
        if answer.status != 200 {
            return Err(format!("a cold start was answered {}: {}", answer.status, answer.body).into());
        }
        starts.push(Start::new(answer.began_us, answer.first_byte_us, &answer.body)?);
    }
    let told: Vec<Told> = rouse.ask(&format!("/api/v1/cold-starts?service=local/app&limit={count}"))?;
    Ok((starts, phases(&told)))
}

fn phases(told: &[Told]) -> BTreeMap<String, Spread> {
    let mut phases: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for told in told.iter().filter(|told| told.outcome == "served") {
        for (phase, &took) in &told.phases_us {
            phases.entry(phase).or_default().push(float(took) / 1e3);
        }
    }
    phases.into_iter().filter_map(|(phase, took)| Some((phase.to_owned(), Spread::of(&took)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_counts_from_both_moments() {
        let start = Start::new(1_000, 9_000, "7000\n").unwrap();
        assert_eq!((start.total, start.after_listening), (8.0, 2.0));
        assert!(Start::new(0, 1, "no number").is_err());
    }

    #[test]
    fn only_what_was_served_has_phases() {
        let told = |outcome: &str, took| Told {
            outcome: outcome.to_owned(),
            phases_us: BTreeMap::from([("ready".to_owned(), took)]),
        };
        let phases = phases(&[told("served", 1_000), told("served", 3_000), told("abandoned", 90_000)]);
        assert_eq!(phases["ready"], Spread { median: 2.0, min: 1.0, max: 3.0, count: 2 });
    }
}
