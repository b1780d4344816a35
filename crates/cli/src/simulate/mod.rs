//! `rouse simulate`: replays a trace, or a built-in shape, through the autoscaler, and shows what policies cost.
//!
//! The autoscaler is the one of `rouse_core`, which `rouse up` and the controller run: only its services are a model.

mod args;
mod call_trace;
mod compare;
mod json;
mod policies;
mod replay;
mod run;
mod service;
mod shape;
mod svg;
mod text;
mod totals;
mod trace;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::time::Duration;

pub use args::{HELP, SimulateArgs};

use crate::input::printable;
use crate::{CommandError, Streams};
use args::{SimulateFormat, WithinMinute};
use call_trace::{CallTrace, Placement};
use policies::Policy;
use run::{Outcome, Simulation};
use service::ServiceModel;
use trace::TraceOptions;

/// The fixed windows and the costs of cold starts, in minutes.
const FIXED: [u64; 8] = [1, 2, 5, 10, 15, 20, 30, 60];
const LEARNED: [u64; 7] = [1, 2, 5, 10, 20, 40, 80];

/// Runs `rouse simulate`.
pub(crate) fn run(args: &SimulateArgs, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    let call_trace = call_trace(args, streams.stdin)?;
    let model = ServiceModel {
        start_time: args.model.start_time.get(),
        request_time: args.model.request_time.get(),
        target: args.model.target,
    };
    let split = if args.compare { call_trace.length / 2 } else { args.judge_from.get() };
    if split >= call_trace.length {
        let length = rouse_config::duration::HumanDuration::from(call_trace.length);
        let what = format!("--judge-from {} leaves nothing: the trace ends at {length}", args.judge_from);
        return Err(CommandError::Input(what));
    }
    let simulation = Simulation { call_trace: &call_trace, model, split };
    if args.compare {
        let pairs = compare::pairs(&outcomes(&simulation, &compare::policies(), streams)?);
        return Ok(compare::table(streams.out, &simulation, &pairs)?);
    }
    let outcomes = outcomes(&simulation, &all_policies(), streams)?;
    match args.output {
        SimulateFormat::Text => text::table(streams.out, &simulation, &outcomes)?,
        SimulateFormat::Json => json::write(streams.out, &outcomes)?,
        SimulateFormat::Svg => {
            let title = format!("{}: cold starts and idle time", call_trace.name);
            streams.out.write_all(svg::chart(&title, &outcomes).as_bytes())?;
        }
    }
    Ok(())
}

fn outcomes(
    simulation: &Simulation<'_>,
    policies: &[Policy],
    streams: &mut Streams<'_>,
) -> Result<Vec<Outcome>, CommandError> {
    simulation.run(policies, streams.err)?.map_err(|bad| CommandError::Input(bad.to_string()))
}

fn all_policies() -> Vec<Policy> {
    let fixed = FIXED.into_iter().map(|minutes| Policy::Fixed(Duration::from_mins(minutes)));
    let learned = LEARNED.into_iter().map(|minutes| Policy::Learned(Duration::from_mins(minutes)));
    fixed.chain(learned).chain([Policy::Keda, Policy::KedaHttp, Policy::Knative]).collect()
}

fn call_trace(args: &SimulateArgs, stdin: &mut dyn Read) -> Result<CallTrace, CommandError> {
    let Some(path) = &args.trace else {
        // clap demands one of the two.
        let shape =
            args.shape.ok_or_else(|| CommandError::Input("expected --trace or --shape".to_owned()))?;
        return Ok(shape::call_trace(shape, &args.shape_args, args.seed));
    };
    let placed = match args.within_minute {
        WithinMinute::Auto => None,
        WithinMinute::Even => Some(Placement::Even),
        WithinMinute::Random => Some(Placement::Random),
    };
    let options = TraceOptions { triggers: args.trigger.clone(), placed, seed: args.seed };
    if path == Path::new("-") {
        return trace::read(&mut BufReader::new(stdin), "<stdin>", &options);
    }
    let name = printable(&path.display().to_string());
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => CommandError::Input(format!("{name}: no such file: check the path")),
        _ => CommandError::Io { what: format!("cannot open {name}"), error },
    })?;
    trace::read(&mut BufReader::new(file), &name, &options)
}
