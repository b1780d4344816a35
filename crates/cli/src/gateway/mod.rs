//! `rouse gateway`: the data plane on Kubernetes. [`settings::read`] says what it is told, from flags, variables and a
//! file; [`run`] is where it starts.

mod args;
mod build;
mod check;
mod file;
mod go;
mod keda;
mod read;
pub mod serve;
pub mod settings;
mod show;
mod sources;
pub mod table;
pub mod value;

use std::fs;

use anstyle::{AnsiColor, Style};

pub use args::{Format, GatewayArgs};
pub(crate) use keda::drain_has_no_end;
pub use keda::{Alias, Said};
use settings::Settings;
pub use sources::{Environment, Origin, Problem, Problems, Warning};

use crate::Streams;
use crate::failure::Failure;

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

/// Reads the settings, and shows them or starts.
pub(crate) fn command(args: &GatewayArgs, streams: &mut Streams<'_>) -> Result<(), Failure> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    let read = settings::read(args, variables, |path| fs::read_to_string(path));
    let (settings, warnings) = read.map_err(|problems| Failure::Input(problems.to_string()))?;
    let yellow = Style::new().bold().fg_color(Some(AnsiColor::Yellow.into()));
    for warning in warnings {
        writeln!(streams.err, "{yellow}warning:{yellow:#} {warning}")?;
    }
    if !args.check_config {
        return run(&settings);
    }
    let opened = serve::opened::open(&settings).map_err(|problems| Failure::Input(problems.to_string()))?;
    for warning in opened.warnings() {
        writeln!(streams.err, "{yellow}warning:{yellow:#} {warning}")?;
    }
    show::settings(&settings, args.output, streams.out)
}

/// Runs the gateway until a signal ends it.
pub fn run(settings: &Settings) -> Result<(), Failure> {
    serve::run(settings)
}
