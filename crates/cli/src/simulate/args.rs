//! The command-line arguments and help of `rouse simulate`.

#![allow(clippy::doc_markdown, reason = "doc comments are help texts here, and backticks would be printed")]

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use rouse_config::duration::HumanDuration;

/// `rouse simulate`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("load").required(true).args(["trace", "shape"]))]
pub struct SimulateArgs {
    /// The trace to replay, or - for standard input
    ///
    /// A CSV file with the calls per minute of each function, in the format of the Azure Functions trace of 2019: the columns
    /// HashOwner, HashApp, HashFunction, Trigger (which some of the public files lack), and one for each minute.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Only functions of the trace with this trigger, like http or timer; repeat it for several
    #[arg(long, value_name = "TRIGGER", conflicts_with = "shape")]
    pub trigger: Vec<String>,
    /// When the calls of a minute come, of which a trace has only the number
    #[arg(long, value_name = "HOW", value_enum, default_value_t, conflicts_with = "shape")]
    pub within_minute: WithinMinute,
    /// A built-in shape of load instead of a trace
    #[arg(long, value_name = "SHAPE", value_enum)]
    pub shape: Option<Shape>,
    /// The sizes of shapes.
    #[command(flatten)]
    pub shape_args: ShapeArgs,
    /// The model of all services.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Count only what happens after this time; policies learn from the begin
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub judge_from: HumanDuration,
    /// Compare each fixed window with the learned policy whose cost was chosen on the first half, judged on the second half
    #[arg(long, conflicts_with_all = ["judge_from", "output"])]
    pub compare: bool,
    /// The output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: SimulateFormat,
    /// The start of all random numbers: the same number gives the same result
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

/// What a shape looks like.
#[derive(Debug, Args)]
pub struct ShapeArgs {
    /// Shapes: how many services, 1 to 10000
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub services: u32,
    /// Shapes: how long, 1m to 168h
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = length)]
    pub length: HumanDuration,
    /// Shapes step, burst and day: the highest rate in requests per second, up to 10000
    #[arg(long, value_name = "RATE", default_value_t = 20.0, value_parser = rate)]
    pub rate: f64,
    /// Shapes burst, sparse and timers: the time from one to the next, for sparse on average, 1s or more
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = every)]
    pub every: HumanDuration,
    /// Shape timers: how late a call may be
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = length_or_none)]
    pub jitter: HumanDuration,
}

/// What services are like.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// How long a pod takes to become ready
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = length_or_none)]
    pub start_time: HumanDuration,
    /// How long a request takes
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = request_time)]
    pub request_time: HumanDuration,
    /// How many concurrent requests one pod should have, for Rouse and KEDA
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub target: u32,
}

/// A built-in shape of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// Nothing, then the full rate for a third of the time, then nothing
    Step,
    /// A minute at the full rate each --every, nothing in between
    Burst,
    /// A rate that follows the day: nothing at night, the full rate at noon
    Day,
    /// Single requests at random times
    Sparse,
    /// A request each --every, a little late
    Timers,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Shape::Step => "step",
            Shape::Burst => "burst",
            Shape::Day => "day",
            Shape::Sparse => "sparse",
            Shape::Timers => "timers",
        })
    }
}

/// When the calls of a minute come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum WithinMinute {
    /// Those of timers at equal distances, all others at random moments
    #[default]
    Auto,
    /// At equal distances, the first at the begin of the minute
    Even,
    /// At random moments
    Random,
}

/// The output format of `simulate`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum SimulateFormat {
    /// A table for people
    #[default]
    Text,
    /// {"policies":[{"policy","cold_starts","waited_seconds","pod_minutes","idle_pod_minutes"}]}
    Json,
    /// A chart: cold starts over idle time
    Svg,
}

const MINUTE: Duration = Duration::from_mins(1);
const WEEK: Duration = Duration::from_hours(7 * 24);

fn between(text: &str, least: Duration, most: Duration) -> Result<HumanDuration, String> {
    let parsed = text.parse::<HumanDuration>().map_err(|error| error.to_string())?;
    if (least..=most).contains(&parsed.get()) {
        return Ok(parsed);
    }
    Err(format!("expected {} to {}", HumanDuration::from(least), HumanDuration::from(most)))
}

fn length(text: &str) -> Result<HumanDuration, String> {
    between(text, MINUTE, WEEK)
}

fn length_or_none(text: &str) -> Result<HumanDuration, String> {
    between(text, Duration::ZERO, Duration::from_hours(1))
}

fn every(text: &str) -> Result<HumanDuration, String> {
    between(text, Duration::from_secs(1), WEEK)
}

fn request_time(text: &str) -> Result<HumanDuration, String> {
    between(text, Duration::from_millis(1), Duration::from_hours(1))
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.001..=10_000.0).contains(rate));
    rate.ok_or_else(|| "expected a number from 0.001 to 10000".to_owned())
}

/// The text at the end of `rouse simulate --help`.
pub const HELP: &str = "\
Replays the calls of a trace or of a built-in shape, and prints what each policy costs: cold starts, the time that requests \
waited, and the time of pods. Rouse's policies run in the autoscaler of `rouse up` and `rouse controller` itself; KEDA and \
Knative are models of their defaults. docs/scaling.md describes both.

  fixed 5m          an app goes to zero after 5 minutes without requests (idle-after)
  learned 10m       it learns from the gaps between requests; a cold start is worth 10 idle minutes (cold-start-cost)
  keda              a trigger that KEDA polls: pollingInterval 30s, cooldownPeriod 300s
  keda-http-add-on  the same, but the first request wakes the app at once
  knative           the KPA: stable window 60s, panic window 6s, scale-to-zero grace period 30s

The result is the same each time: all random numbers come from --seed.

Examples:
  rouse simulate --shape timers --every 5m --services 20
  rouse simulate --shape sparse --every 15m --length 72h -o json | jq '.policies[].cold_starts'
  rouse simulate --trace invocations_per_function_md.anon.d01.csv --trigger http
  rouse simulate --trace trace.csv --judge-from 12h -o svg > trace.svg
  rouse simulate --trace trace.csv --compare

Exit codes: 0 done, 1 failed while running, 2 bad usage or malformed input.";
