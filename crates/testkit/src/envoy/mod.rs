//! A real Envoy, for tests: finds the program, runs it, and asks its admin interface.
//!
//! A test without the program cannot run. It says [`HOW_TO_INSTALL`] and counts as skipped.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a test may panic, also in its helpers"
)]

mod admin;
mod bootstrap;

use std::fmt::Debug;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

pub use admin::{EnvoyHost, get};
pub use bootstrap::{bootstrap, static_cluster};

/// Long enough for two slow cores under load.
const PATIENCE: Duration = Duration::from_mins(1);
/// The poll interval of [`eventually`].
const POLL: Duration = Duration::from_millis(5);
/// How much of the log is shown with a failed test.
const SHOWN_LINES: usize = 60;

/// For the line that says what is skipped.
pub const HOW_TO_INSTALL: &str =
    "there is no Envoy here (make envoy installs it; ROUSE_ENVOY names another one)";

/// The program: `ROUSE_ENVOY`, then `envoy` in `PATH`, then what `make envoy` installed in `ROUSE_TOOLS` (`~/.cache/rouse/tools`).
pub fn binary() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("ROUSE_ENVOY") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = || Some(Path::new(&std::env::var_os("HOME")?).join(".cache/rouse/tools"));
    let tools = std::env::var_os("ROUSE_TOOLS").map(PathBuf::from).or_else(home);
    let installed = std::env::split_paths(&path).map(|folder| folder.join("envoy"));
    installed.chain(tools.map(|tools| tools.join("envoy/envoy/_bin/envoy"))).find(|file| file.is_file())
}

/// A running Envoy. Dropping it ends the process, and prints the end of its log if the test fails.
#[derive(Debug)]
pub struct Envoy {
    process: Mutex<Child>,
    admin: SocketAddr,
    folder: TempDir,
}

impl Envoy {
    /// Starts Envoy with a bootstrap in JSON, in which the admin interface is set. Waits until it answers.
    pub async fn start(binary: &Path, mut bootstrap: Value) -> Self {
        let socket = json!({ "address": "127.0.0.1", "port_value": 0 });
        bootstrap["admin"] = json!({ "address": { "socket_address": socket } });
        Self::start_with(binary, "envoy.json", &bootstrap.to_string()).await
    }

    /// Starts Envoy with a bootstrap whose admin interface is at any port. The name of the file says whether it is JSON or YAML. Waits
    /// until it answers.
    pub async fn start_with(binary: &Path, file: &str, bootstrap: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (configuration, admin) = (folder.path().join(file), folder.path().join("admin"));
        fs::write(&configuration, bootstrap).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(binary);
        command.arg("--config-path").arg(&configuration).arg("--admin-address-path").arg(&admin);
        // One worker: all requests see the same endpoints, and connections are shared.
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "info"]);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut envoy = Self {
            process: Mutex::new(command.spawn().unwrap()),
            admin: SocketAddr::from(([127, 0, 0, 1], 0)),
            folder,
        };
        envoy.admin = eventually("the address of Envoy's admin interface", async || {
            envoy.check_running();
            fs::read_to_string(&admin).ok()?.parse().ok()
        })
        .await;
        envoy
    }

    /// Waits until an answer of the admin interface at `path`, as JSON, has what `find` looks for.
    pub async fn find<T>(&self, what: &str, path: &str, find: impl Fn(&Value) -> Option<T>) -> T {
        eventually(what, async || find(&self.json(path).await)).await
    }

    /// What the admin interface answers at `path`.
    pub async fn ask(&self, path: &str) -> String {
        self.check_running();
        let answer =
            get(self.admin, "envoy", path, &[]).await.unwrap_or_else(|error| panic!("{path}: {error}"));
        String::from_utf8(answer.into_body().into()).unwrap()
    }

    /// The log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).id()
    }

    /// Fails the test if the process has ended.
    fn check_running(&self) {
        let status = self.process.lock().unwrap_or_else(PoisonError::into_inner).try_wait().unwrap();
        if let Some(status) = status {
            panic!("Envoy ended with {status}");
        }
    }
}

impl Drop for Envoy {
    #[expect(clippy::print_stderr, reason = "the log belongs to the message of a failed test")]
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Both fail only if it has ended.
        process.kill().ok();
        process.wait().ok();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let end = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
            eprintln!("---- Envoy printed:\n{}\n----", end.join("\n"));
        }
    }
}

/// Calls `ask` until it returns `expected`. Panics with the last answer if that is not within a minute.
pub async fn eventually_equal<T: PartialEq + Debug>(
    what: &str,
    expected: &T,
    mut ask: impl AsyncFnMut() -> T,
) {
    let mut last = None;
    let asking = async {
        loop {
            let answer = ask().await;
            if answer == *expected {
                return;
            }
            last = Some(answer);
            pause().await;
        }
    };
    let ended = tokio::time::timeout(PATIENCE, asking).await;
    assert!(ended.is_ok(), "after {PATIENCE:?}, {what} is {last:?}, expected {expected:?}");
}

/// Calls `ask` until it returns a value. Panics if it returns none within a minute.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            pause().await;
        }
    };
    tokio::time::timeout(PATIENCE, asking)
        .await
        .unwrap_or_else(|_| panic!("timed out after {PATIENCE:?}: {what}"))
}

#[expect(clippy::disallowed_methods, reason = "another process cannot notify us of its state")]
async fn pause() {
    tokio::time::sleep(POLL).await;
}
