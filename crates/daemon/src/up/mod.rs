//! `rouse up`: reads settings and file (or the built-in demo), opens the listeners, and runs the apps on this machine.

pub mod args;
mod events;
mod listen;
pub mod messages;
pub mod plan;
mod reload;
mod run;
pub mod settings;
mod sidecars;
pub mod source;

use rouse_config::settings::Environment;
use rouse_net::clock::TokioClock;

pub use args::UpArgs;

use crate::failure::CommandError;
use crate::process::drain::DrainTimes;
use crate::role::{self, ConsoleOutput};
use run::UpRole;
use settings::{DRAIN_TIMEOUT, SHUTDOWN_DELAY};
use source::ConfigSource;

/// The hidden subcommand of the binary that guards one pod.
pub const GUARDIAN: &str = "pod-guardian";

/// Reads settings and file, and runs the apps until a signal or a failure.
pub fn command(args: &UpArgs) -> Result<(), CommandError> {
    let read = args.read_settings(&Environment::of_process());
    let (values, warnings) = read.map_err(|problems| CommandError::Input(problems.to_string()))?;
    let source = ConfigSource::find(args.file.as_deref())?;
    let config = source.read().map_err(|error| CommandError::Input(error.to_string()))?;
    let certificates = run::open_certificates(&source, &config)?;
    source.check_log_folder(&config)?;
    let listeners = listen::open(&values, &config)?;
    let times =
        DrainTimes { delay: values.get(&SHUTDOWN_DELAY).into(), timeout: values.get(&DRAIN_TIMEOUT).into() };
    role::run(&values.clone(), ConsoleOutput::Terminal, times, async |console| {
        let clock = TokioClock::faster(args.clock_speed.unwrap_or(1));
        let role = UpRole::start(values, source, config, (listeners, certificates), clock, console)?;
        for warning in warnings {
            console.warn(&warning.to_string());
        }
        Ok(role)
    })
}
