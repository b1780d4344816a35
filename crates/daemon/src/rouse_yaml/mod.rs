//! `rouse.yaml`, read and checked: [`read`] returns typed values, or all problems with line and column.
//!
//! A checker of our own over the marked tree, not serde, which stops at the first error: `schema` says what each
//! key may be, and `rouse_config` has the ways to read a value and gathers what is wrong.

mod command_line;
mod names;
mod schema;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use names::{AppName, AppPort, AppTransport, BadWord};
use rouse_config::document::file::{syntax, tree};
use rouse_config::errors::FileProblems;
pub use rouse_config::errors::{Errors, FileProblem, SHOWN};
use rouse_core::scale::{BadPolicy, ScalePolicy, ScaleSettings};
pub use rouse_local::engine::Readiness;
use rouse_proxy::routing::{HostPattern, PathPrefix};

/// What `rouse up` is asked to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Where requests come in; at least one. Port 0 is any free port.
    pub listen: Vec<SocketAddr>,
    /// Where the admin API, the metrics and the dashboard are.
    pub admin: SocketAddr,
    /// Where requests come in over TLS.
    pub tls: Option<Tls>,
    /// What is kept of what apps print.
    pub logs: LogRetention,
    /// What runs, in the order of the file; at least one, each name once.
    pub apps: Vec<App>,
}

/// What is kept of what apps print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRetention {
    /// The memory for the last lines of each app, in bytes.
    pub keep: usize,
    /// Where each app has a file with all of its lines, relative to the file's folder.
    pub folder: Option<PathBuf>,
}

/// The TLS listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its certificates, chosen by the client's server name; at least one.
    pub certs: Vec<Cert>,
}

/// A certificate and its key. Both relative to the file's folder, and not looked at yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cert {
    /// The PEM file with the chain.
    pub cert: PathBuf,
    /// The PEM file with the private key.
    pub key: PathBuf,
}

/// One app: a command whose processes are pods.
#[derive(Debug, Clone, PartialEq)]
pub struct App {
    /// Its name.
    pub name: AppName,
    /// What to run. `$PORT`, `$HOST` and `$NAME` are still in it.
    pub command: AppCommand,
    /// What the environment has beside ours, with `$PORT`, `$HOST` and `$NAME` still in it; never `PORT` or `HOST`,
    /// which Rouse sets.
    pub env: BTreeMap<String, String>,
    /// Where it runs, relative to the file's folder.
    pub workdir: PathBuf,
    /// Which hosts lead to it; at least one. No host and path leads to two apps.
    pub hosts: Vec<HostPattern>,
    /// Which paths of these hosts lead to it; at least one.
    pub paths: Vec<PathPrefix>,
    /// Which port a pod gets.
    pub port: AppPort,
    /// What it speaks.
    pub protocol: AppTransport,
    /// How we learn that a pod is ready.
    pub readiness: Readiness,
    /// How often a ready pod is asked again; not zero.
    pub probe_interval: Duration,
    /// How many pods it has.
    pub scale: AppScale,
    /// How long a request may take.
    pub timeouts: AppTimeouts,
    /// How long a pod may take to stop, between SIGTERM and SIGKILL.
    pub stop_grace: Duration,
    /// Whether each pod runs with a sidecar that pushes its state.
    pub sidecar: bool,
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppCommand {
    /// The program; not empty.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// How many pods: what was asked for, and the policy that it makes. They agree, so neither can be changed alone.
#[derive(Debug, Clone, PartialEq)]
pub struct AppScale {
    settings: ScaleSettings,
    policy: ScalePolicy,
}

impl AppScale {
    /// What the autoscaler follows.
    pub fn policy(&self) -> &ScalePolicy {
        &self.policy
    }

    /// The settings as they were written.
    pub fn settings(&self) -> &ScaleSettings {
        &self.settings
    }

    /// Requests at once that one pod can have at most; `None`: no limit.
    pub fn limit(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.settings.limit)
    }
}

impl TryFrom<ScaleSettings> for AppScale {
    type Error = BadPolicy;

    fn try_from(settings: ScaleSettings) -> Result<Self, BadPolicy> {
        ScalePolicy::try_from(&settings).map(|policy| Self { settings, policy })
    }
}

/// How long a request may take, part by part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppTimeouts {
    /// Until a pod is ready; `None` (`0s`): as long as the request may take.
    pub readiness: Option<Duration>,
    /// The whole request; `None` (`0s`): no limit.
    pub request: Option<Duration>,
    /// Until the response begins; `None` (`0s`): no limit of its own.
    pub response_header: Option<Duration>,
    /// One attempt to connect; not zero.
    pub connect: Duration,
}

/// Reads and checks a whole file. `name` is what errors call it.
pub fn read(text: &str, name: &str) -> Result<Config, Errors> {
    check(text, name, None)
}

/// The same, and checks that the folders are there that it names, relative to `folder`.
pub fn read_in(text: &str, name: &str, folder: &Path) -> Result<Config, Errors> {
    check(text, name, Some(folder))
}

fn check(text: &str, name: &str, folder: Option<&Path>) -> Result<Config, Errors> {
    let problems = FileProblems::default();
    let config = match tree(text) {
        Ok(root) => schema::config(&root, folder, &problems),
        Err(fault) => {
            problems.push(fault.mark, &fault.field(), syntax(&fault.problem));
            None
        }
    };
    match config {
        Some(config) if problems.is_empty() => Ok(config),
        _ => Err(problems.into_errors(name)),
    }
}
