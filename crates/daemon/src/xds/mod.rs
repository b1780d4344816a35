//! `rouse xds`, the control plane of Envoys on Kubernetes: reads its settings, then prints them (--check-config) or serves.

mod args;
mod check;
mod run;
pub mod settings;

use std::io::Write;

use rouse_config::settings::{Environment, Problems, SettingWarning, Values};

pub use args::XdsArgs;

use crate::failure::CommandError;
use crate::gateway::read_report_roots;
use crate::process::style;
use crate::xds_listener::files::{self, XdsFiles};

/// The text at the end of `rouse xds --help`.
pub const HELP: &str = "\
Envoys get a cluster and its endpoints for each port of a Service that a route leads to, and the routes, by delta ADS; or the \
endpoints alone, for clusters of their own. An endpoint is HEALTHY while its pod is ready and DRAINING while it leaves. While a service \
has no ready pod, its endpoints are the gateways, which hold the requests, wake the service and forward: so the gateways are \
needed for cold starts only. This role reads the cluster as a gateway does; it wakes nothing, writes nothing and holds no request. \
Several replicas serve the same, and Envoys that lose one keep what they have.

Envoys report the load of their clusters on the same port. With --report-to, it reaches the controllers: without that, they do \
not know the load that passes Envoys.

Each setting is a flag and a variable; the flag takes precedence. An empty variable counts as not set. Lists are separated by \
commas in variables. The settings under \"As for the gateways\" must have the values that the gateways have.

The admin address answers GET /livez, /readyz and /metrics.

Examples:
  rouse xds --check-config --xds-listen 127.0.0.1:18000
  rouse xds --xds-listen 127.0.0.1:18000 --envoy-listen 0.0.0.0:8080
  rouse xds --xds-tls-cert tls.crt --xds-tls-key tls.key --xds-client-ca ca.crt --xds-client-san envoy.edge.svc
  rouse xds bootstrap --server 127.0.0.1:18000 > envoy.yaml

Exit codes: 0 stopped by a signal; 1 failed while running, or stopped at once by a second signal; 2 bad usage or configuration.";

/// Reads the settings, and prints them or serves until a signal.
pub fn command(args: &XdsArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CommandError> {
    let values = read_settings(args, &Environment::of_process());
    let (values, warnings) = values.map_err(|problems| CommandError::Input(problems.to_string()))?;
    let files = open(&values).map_err(|problems| CommandError::Input(problems.to_string()))?;
    let all = warnings.iter().map(ToString::to_string).chain(files.warnings.iter().map(ToString::to_string));
    let all: Vec<String> = all.collect();
    if !args.check_config {
        return run::run(&values, &all, files);
    }
    for warning in all {
        writeln!(err, "{}", style::warning(&warning))?;
    }
    Ok(values.show(args.output, out)?)
}

/// Reads and checks the settings, and returns them with warnings.
pub fn read_settings(args: &XdsArgs, env: &Environment) -> Result<(Values, Vec<SettingWarning>), Problems> {
    let (values, mut reading) = rouse_config::settings::read(&args.flags, env, None, |_| Ok(String::new()));
    check::together(&values, &mut reading);
    reading.finish(values)
}

/// Opens all files that the settings name, and reports every file that cannot be opened.
fn open(values: &Values) -> Result<XdsFiles, Problems> {
    let mut problems = Vec::new();
    let mut opened = files::open(values, &mut problems);
    opened.warnings.extend(read_report_roots(values, &mut problems));
    Problems::none_in(problems, opened)
}
