//! The command-line arguments of `rouse up`: the file, and a flag for each setting.

use std::path::PathBuf;

use clap::Args;
use rouse_config::settings::{
    Environment, Flags, HasTable, Problems, SettingWarning, SettingsTable, Values, read,
};

use super::settings::TABLE;

/// `rouse up`, as a command with settings.
#[derive(Debug)]
pub struct UpCommand;

impl HasTable for UpCommand {
    const TABLE: &'static SettingsTable = &TABLE;
}

/// `rouse up`.
#[derive(Debug, Clone, Default, Args)]
pub struct UpArgs {
    /// The file with the apps [default: rouse.yaml or rouse.yml in this folder; if there is none, a built-in demo]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// For tests: all clocks but the wall clock run this many times faster, so that an hour of idleness takes a minute
    #[arg(long, hide = true, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub clock_speed: Option<u32>,
    /// The settings that are given as flags.
    #[command(flatten)]
    pub flags: Flags<UpCommand>,
}

impl UpArgs {
    /// The settings, from flags and variables.
    pub fn read_settings(&self, env: &Environment) -> Result<(Values, Vec<SettingWarning>), Problems> {
        let (values, reading) = read(&self.flags, env, None, |_| Ok(String::new()));
        reading.finish(values)
    }
}

/// The text at the end of `rouse up --help`.
pub const HELP: &str = "\
Each app of the file is a service: a request for its host starts it, the request waits until it is ready, and after \
a while without requests it is stopped again. Editing the file, or SIGHUP, applies the changes without dropping a \
request; a file with errors changes nothing.

A rouse.yaml can be as short as this:
  apps:
    hello:
      command: python3 -m http.server $PORT --bind $HOST

$PORT, $HOST and $NAME become the port, address and name of each pod, in the command and in env; $$ is a plain $. A command \
of one string is split into words without a shell. logs: FOLDER writes all that an app prints to FOLDER/<app>.log; \
readiness: {http: /healthz, interval: 10s} sets how often a ready app is probed. examples/rouse.yaml has every key.

Examples:
  rouse up
  rouse up shop.yaml --listen 127.0.0.1:8000 --admin 127.0.0.1:9000
  curl -H 'Host: hello.localhost' http://127.0.0.1:8080/
  rouse status

SIGINT (Ctrl-C) or SIGTERM: requests under way finish, for 3 s at most (--drain-timeout), then the apps are stopped. A \
second signal stops at once; one that comes within 500 ms of the first counts as the same.

Exit codes: 0 stopped by a signal, after the drain; 1 failed while running, or stopped at once by a second signal; \
2 bad usage or configuration.";

/// The settings of `rouse up` with these flags.
#[cfg(test)]
pub(super) fn values(flags: &[impl AsRef<str>]) -> Values {
    use clap::{Command, FromArgMatches as _};
    let words = ["up"].into_iter().chain(flags.iter().map(AsRef::as_ref));
    let matches = UpArgs::augment_args(Command::new("up")).try_get_matches_from(words).unwrap();
    let args = UpArgs::from_arg_matches(&matches).unwrap();
    args.read_settings(&Environment::default()).unwrap().0
}
