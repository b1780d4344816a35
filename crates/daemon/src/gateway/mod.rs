//! `rouse gateway`, the data plane on Kubernetes: reads its settings, then prints them (--check-config) or serves.

mod args;
mod check;
mod keda;
mod load_reports;
mod own_addresses;
mod probers;
mod registration;
mod registration_thread;
pub mod routes;
mod run;
pub mod settings;
mod tls_files;
pub mod upstream;

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use rouse_config::settings::{ConfigFile, Environment, Origin, Problems, SettingWarning, Values};

pub use args::GatewayArgs;
pub use keda::drain_has_no_end;
pub(crate) use load_reports::{ReportedRoutes, client as report_client, read_roots as read_report_roots};

use crate::failure::CommandError;
use crate::process::style;

/// The text at the end of `rouse gateway --help`.
pub const HELP: &str = "\
Each setting is a flag, a variable and a key of the file; the first of these that is set applies. KEDA HTTP add-on's \
variables come after ours and before the file. An empty variable counts as not set. Lists are separated by commas in \
variables. In the file, certificates are a list of pairs: tls-certs: [{cert: FILE, key: FILE}].

KEDA_HTTP_PROXY_TLS_SKIP_VERIFY and KEDA_HTTP_TLS_SKIP_VERIFY are honoured, with a warning at every start; no flag \
turns the verification of pods' certificates off.

Examples:
  rouse gateway --check-config
  rouse gateway --config gateway.yaml --max-hold 2m
  ROUSE_ADMIN=$POD_IP:9090 rouse gateway --tls-listen 0.0.0.0:8443 --tls-cert tls.crt --tls-key tls.key

Exit codes: 0 stopped by a signal, after the drain; 1 failed while running, or stopped at once by a second signal; \
2 bad usage or configuration.";

/// Reads the settings, and prints them or runs the gateway until a signal.
pub fn command(args: &GatewayArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CommandError> {
    let values = read_settings(args, &Environment::of_process(), |path| fs::read_to_string(path));
    let (values, warnings) = values.map_err(|problems| CommandError::Input(problems.to_string()))?;
    let opened = tls_files::open(&values).map_err(|problems| CommandError::Input(problems.to_string()))?;
    if !args.check_config {
        return run::run(&values, &warnings, opened);
    }
    let of_files = opened.warnings().map(ToString::to_string);
    for warning in warnings.iter().map(ToString::to_string).chain(of_files) {
        writeln!(err, "{}", style::warning(&warning))?;
    }
    Ok(values.show(args.output, out)?)
}

/// Reads and checks the settings, and returns them with warnings. `open` reads the file, if one is named.
pub fn read_settings(
    args: &GatewayArgs,
    env: &Environment,
    open: impl FnOnce(&Path) -> io::Result<String>,
) -> Result<(Values, Vec<SettingWarning>), Problems> {
    let flag =
        args.config.clone().map(|path| ConfigFile { path, named_by: Origin::Flag("--config".to_owned()) });
    let variable = || {
        let path = env.get(settings::CONFIG)?.into();
        Some(ConfigFile { path, named_by: Origin::Variable(settings::CONFIG.to_owned()) })
    };
    let file = flag.or_else(variable);
    let (values, mut reading) = rouse_config::settings::read(&args.flags, env, file, open);
    check::together(&values, &mut reading);
    reading.finish(values)
}
