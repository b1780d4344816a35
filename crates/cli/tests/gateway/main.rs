//! The settings of `rouse gateway`: every flag, variable, key and alias with valid and invalid values; precedence;
//! conflicts; help and documentation.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a panic is how a test fails")]

mod aliases;
mod binary;
mod cases;
mod docs;
mod each;
mod logs;
mod routes;
mod sources;
mod starting;
mod together;

use std::io;
use std::path::Path;

use clap::Parser;
use rouse_cli::args::{Command, Rouse};
use rouse_config::settings::{AnySetting, Environment, Problems, SettingWarning, Values};
use rouse_daemon::RoleCommand;
use rouse_daemon::gateway::settings::TABLE;
use rouse_daemon::gateway::{GatewayArgs, read_settings};

/// The configuration of one gateway.
#[derive(Debug, Clone, Default)]
struct Told {
    flags: Vec<String>,
    variables: Vec<(String, String)>,
    file: Option<String>,
}

/// The name of the file in the tests.
const FILE: &str = "etc/gateway.yaml";

impl Told {
    fn flag(mut self, flag: &str, value: &str) -> Self {
        self.flags.push(format!("{flag}={value}"));
        self
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn variables(self, all: &[(&str, &str)]) -> Self {
        all.iter().fold(self, |told, (name, value)| told.variable(name, value))
    }

    fn file(mut self, text: &str) -> Self {
        self.file = Some(text.to_owned());
        self
    }

    fn args(&self) -> GatewayArgs {
        let config = self.file.iter().map(|_| format!("--config={FILE}"));
        let words =
            ["rouse", "gateway"].map(str::to_owned).into_iter().chain(config).chain(self.flags.clone());
        match Rouse::try_parse_from(words).unwrap_or_else(|error| panic!("{self:?}: {error}")).command {
            Command::Role(RoleCommand::Gateway(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    fn read(&self) -> Result<(Values, Vec<SettingWarning>), Problems> {
        read_settings(&self.args(), &Environment::new(self.variables.clone()), |path: &Path| {
            match &self.file {
                Some(text) if path == Path::new(FILE) => Ok(text.clone()),
                _ => Err(io::Error::new(io::ErrorKind::NotFound, "there is none")),
            }
        })
    }

    #[track_caller]
    fn settings(&self) -> Values {
        self.good().0
    }

    #[track_caller]
    fn good(&self) -> (Values, Vec<String>) {
        let (settings, warnings) = self.read().unwrap_or_else(|problems| panic!("{self:?}: {problems}"));
        (settings, warnings.iter().map(ToString::to_string).collect())
    }

    /// The reported errors, one line each.
    #[track_caller]
    fn problems(&self) -> Vec<String> {
        match self.read() {
            Err(problems) => problems.all().iter().map(ToString::to_string).collect(),
            Ok((settings, _)) => panic!("{self:?} is taken: {:?}", settings.all()),
        }
    }
}

fn told() -> Told {
    Told::default()
}

fn setting(name: &str) -> &'static dyn AnySetting {
    TABLE.settings().find(|setting| setting.name() == name).unwrap_or_else(|| panic!("no setting {name}"))
}

/// The value of the setting `name`, and its origin.
#[track_caller]
fn listed(settings: &Values, name: &str) -> (String, String) {
    let found = settings.all().iter().find(|found| found.setting.name() == name);
    let found = found.unwrap_or_else(|| panic!("{name} is not listed"));
    (found.value.text.clone().unwrap_or_default(), found.origin.to_string())
}
