//! `rouse sidecar`, the proxy beside an app in its pod: reads its settings, then prints them (--check-config) or serves.

mod admin;
mod app_probe;
mod args;
mod check;
mod lifecycle;
mod push;
mod run;
pub mod settings;

use std::io::Write;

use rouse_config::settings::{Environment, Problems, SettingWarning, Values};

pub use args::SidecarArgs;

use crate::failure::CommandError;
use crate::process::style;

/// The text at the end of `rouse sidecar --help`.
pub const HELP: &str = "\
The sidecar stands in front of one app, in the same pod. It passes requests on to the app, limits how many it gets at a time, \
finds out by its own probes when the app is ready, and tells every gateway so at once (push). When the pod stops, it tells the \
gateways to send requests elsewhere, and serves until the last one is answered.

Each setting is a flag and a variable; the flag takes precedence. An empty variable counts as not set. Lists are separated by \
commas in variables. In a pod, the downward API sets ROUSE_POD_NAME, ROUSE_POD_NAMESPACE, ROUSE_POD_UID and ROUSE_POD_IPS; \
`rouse inject` adds the container with all that it needs.

The admin address answers GET /healthz (200 while the app is ready and the pod does not drain), /livez, /metrics, /drain and \
/wait-for-drain. The last two start the drain and answer when it is over. They are for hooks: from this pod, or with the secret \
in the header X-Rouse-Drain-Secret.

Examples:
  rouse sidecar --check-config --register none
  rouse sidecar --register none --listen 127.0.0.1:8012 --app 127.0.0.1:8080 --concurrency 10
  ROUSE_SERVICE=cart rouse sidecar --app 127.0.0.1:8080 --port http=8012 --register-token /var/run/rouse/token

Exit codes: 0 stopped by a signal, after the drain; 1 failed while running, or stopped at once by a second signal; \
2 bad usage or configuration.";

/// Reads the settings, and prints them or runs the sidecar until a signal.
pub fn command(args: &SidecarArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), CommandError> {
    let values = read_settings(args, &Environment::of_process());
    let (values, warnings) = values.map_err(|problems| CommandError::Input(problems.to_string()))?;
    let push = push::PushSettings::open(&values)?;
    if !args.check_config {
        return run::run(&values, &warnings, push);
    }
    for warning in &warnings {
        writeln!(err, "{}", style::warning(&warning.to_string()))?;
    }
    Ok(values.show(args.output, out)?)
}

/// Reads and checks the settings, and returns them with warnings.
pub fn read_settings(
    args: &SidecarArgs,
    env: &Environment,
) -> Result<(Values, Vec<SettingWarning>), Problems> {
    let (values, mut reading) = rouse_config::settings::read(&args.flags, env, None, |_| Ok(String::new()));
    check::together(&values, &mut reading);
    reading.finish(values)
}
