//! `rouse gateway`: the data plane on Kubernetes.

mod args;
mod check;
pub mod component_settings;
mod events;
mod keda;
mod own_addresses;
mod probers;
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

use crate::failure::CommandError;
use crate::process::style;

/// What `rouse gateway --help` says at its end.
pub const HELP: &str = "\
Each setting is a flag, a variable and a key of the file, which count in this order; KEDA HTTP add-on's variables count \
after ours and before the file. A variable that is empty is not set. Lists are written with commas in variables. In the \
file, certificates are a list of pairs: tls-certs: [{cert: FILE, key: FILE}].

KEDA_HTTP_PROXY_TLS_SKIP_VERIFY and KEDA_HTTP_TLS_SKIP_VERIFY are honoured, with a warning at every start; no flag \
turns the verification of pods' certificates off.

Examples:
  rouse gateway --check-config
  rouse gateway --config gateway.yaml --max-hold 2m
  ROUSE_ADMIN=$POD_IP:9090 rouse gateway --tls-listen 0.0.0.0:8443 --tls-cert tls.crt --tls-key tls.key

Exit codes: 0 stopped by a signal, after the drain; 1 failed while running, or stopped at once by a second signal; \
2 bad usage or configuration.";

/// Reads the settings, and shows them or runs the gateway until a signal.
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

/// The settings, and what an operator should know about them. `open` reads the file, if one is named.
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
