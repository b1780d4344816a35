//! `rouse controller`, the scaling of workloads on Kubernetes: reads its settings, then prints them (--check-config), prints what
//! it would scale (--dry-run), or runs.

mod admin;
mod args;
mod check;
mod dry_run;
mod load_report_listener;
mod publish_route_loads;
mod run;
pub mod settings;

use std::io::Write;

use rouse_config::settings::{Environment, Problems, SettingWarning, Values};

pub use args::ControllerArgs;

use crate::failure::CommandError;
use crate::process::style;

/// The text at the end of `rouse controller --help`.
pub const HELP: &str = "\
The controller scales the workloads of routes by the load that all gateways report: up, down and to zero. Starting from zero is \
the gateways' own: a request never waits for the controller. It scales only routes with the annotation rouse.dev/autoscale: \"on\", \
or all with --autoscale-default on, and never a workload that an HPA or a ScaledObject scales. Several replicas elect a leader, \
which is the only one that writes; all of them take reports and answer KEDA.

Each setting is a flag and a variable; the flag takes precedence. An empty variable counts as not set. Lists are separated by \
commas in variables.

The admin address answers GET /livez, /readyz, /metrics and /api/v1/scaling: every workload with its policy, the last decision and \
what holds it up. /api/v1/scaling/NAMESPACE/SERVICE is what `rouse explain scaling` prints.

Examples:
  rouse controller --dry-run
  rouse controller --dry-run --autoscale-default on -o json
  rouse controller --report-listen 0.0.0.0:9444 --report-tls-cert tls.crt --report-tls-key tls.key --scaler-listen 0.0.0.0:9445

Exit codes: 0 stopped by a signal; 1 failed while running, or stopped at once by a second signal; 2 bad usage or configuration.";

/// Reads the settings, and prints them or runs the controller until a signal.
pub fn command(args: &ControllerArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CommandError> {
    let values = read_settings(args, &Environment::of_process());
    let (values, warnings) = values.map_err(|problems| CommandError::Input(problems.to_string()))?;
    if args.dry_run {
        return dry_run::run(&values, args.output, out, err);
    }
    let files = load_report_listener::open(&values)?;
    if !args.check_config {
        return run::run(&values, &warnings, files);
    }
    for warning in warnings.iter().map(ToString::to_string).chain(files.warnings()) {
        writeln!(err, "{}", style::warning(&warning))?;
    }
    Ok(values.show(args.output, out)?)
}

/// Reads and checks the settings, and returns them with warnings.
pub fn read_settings(
    args: &ControllerArgs,
    env: &Environment,
) -> Result<(Values, Vec<SettingWarning>), Problems> {
    let (values, mut reading) = rouse_config::settings::read(&args.flags, env, None, |_| Ok(String::new()));
    check::together(&values, &mut reading);
    reading.finish(values)
}
