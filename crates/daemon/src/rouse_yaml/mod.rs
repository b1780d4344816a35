//! Reads and checks `rouse.yaml`: [`read`] returns typed values, or all problems with line and column.
//!
//! It does not use serde, which stops at the first error: `schema` reads each key, and `rouse_config` parses values and
//! collects the problems.

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

/// The checked content of `rouse.yaml`.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The addresses for requests; at least one. Port 0 is any free port.
    pub listen: Vec<SocketAddr>,
    /// The address of the admin API and the metrics.
    pub admin: SocketAddr,
    /// The TLS listener, if there is one.
    pub tls: Option<Tls>,
    /// How much of the apps' output is kept, and where.
    pub logs: LogRetention,
    /// The apps, in the order of the file; at least one, with distinct names.
    pub apps: Vec<App>,
}

/// How much of the apps' output is kept, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRetention {
    /// The memory for the last lines of each app, in bytes.
    pub keep: usize,
    /// The folder with a file of all lines for each app, relative to the file's folder.
    pub folder: Option<PathBuf>,
}

/// The TLS listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Its address.
    pub listen: SocketAddr,
    /// Its certificates, chosen by the client's server name; at least one.
    pub certs: Vec<Cert>,
}

/// A certificate and its key. Both paths are relative to the file's folder, and not opened yet.
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
    /// Its command, with `$PORT`, `$HOST` and `$NAME` not replaced yet.
    pub command: AppCommand,
    /// Variables in addition to our own environment, with `$PORT`, `$HOST` and `$NAME` not replaced yet; never `PORT` or
    /// `HOST`, which Rouse sets.
    pub env: BTreeMap<String, String>,
    /// Its working directory, relative to the file's folder.
    pub workdir: PathBuf,
    /// Its hosts; at least one. No pair of host and path leads to two apps.
    pub hosts: Vec<HostPattern>,
    /// Its paths on these hosts; at least one.
    pub paths: Vec<PathPrefix>,
    /// Which port a pod gets.
    pub port: AppPort,
    /// Its protocol.
    pub protocol: AppTransport,
    /// How a pod is probed for readiness.
    pub readiness: Readiness,
    /// How often a ready pod is probed; not zero.
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

/// The scaling of an app: the settings, and the policy made from them. Both are private, so that they always agree.
#[derive(Debug, Clone, PartialEq)]
pub struct AppScale {
    settings: ScaleSettings,
    policy: ScalePolicy,
}

impl AppScale {
    /// The policy of the autoscaler.
    pub fn policy(&self) -> &ScalePolicy {
        &self.policy
    }

    /// The settings as they were written.
    pub fn settings(&self) -> &ScaleSettings {
        &self.settings
    }

    /// The most concurrent requests of one pod; `None`: no limit.
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

/// The timeouts of an app's requests.
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

/// Like [`read`], and also checks that the folders that the file names exist, relative to `folder`.
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
