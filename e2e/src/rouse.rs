//! Starts, signals and stops a `rouse up` process on free ports, and checks that it leaves no process behind.

use std::fmt::Display;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::Programs;
use crate::admin::Admin;
use crate::command::{Ran, run};
use crate::config::{App, Config};
use crate::daemon::{self, Daemon};
use crate::output::Output;
use crate::proc::{self, Process};
use crate::target::{Gateway, Target};

/// How `rouse up` is started: in a folder of its own, without a file argument.
#[derive(Debug)]
pub struct Launch {
    dir: TempDir,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    patient: bool,
}

impl Launch {
    /// In an empty folder.
    pub fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("no temporary folder: {error}"));
        Self { dir, arguments: Vec::new(), environment: Vec::new(), patient: true }
    }

    /// In a folder with this `rouse.yaml`.
    pub fn of(yaml: &str) -> Self {
        Self::empty().file("rouse.yaml", yaml)
    }

    /// With a file in the folder, or below it.
    #[must_use]
    pub fn file(self, name: &str, text: &str) -> Self {
        let path = self.path(name);
        let folder = path.parent().unwrap_or(self.dir.path());
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, text))
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        self
    }

    /// With the default drain timeout. Other tests use a longer one, for machines that are busy.
    #[must_use]
    pub fn as_typed(self) -> Self {
        Self { patient: false, ..self }
    }

    /// With one more argument.
    #[must_use]
    pub fn argument(mut self, argument: impl AsRef<str>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// With a variable in its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Display) -> Self {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs it to its end, for when it cannot start.
    pub async fn refused(&self, programs: &Programs) -> Ran {
        run(self.command(programs)).await
    }

    /// Starts it and waits until it listens.
    pub async fn up(self, programs: &Programs) -> Rouse {
        let Daemon { address, admin, output, pid, child } =
            Daemon::start(self.command(programs), "rouse").await;
        Rouse { address, admin, output, pid, child, host: String::new(), dir: self.dir }
    }

    fn waits_longer(&self) -> bool {
        self.patient && !self.arguments.iter().any(|argument| argument == "--drain-timeout")
    }

    fn command(&self, programs: &Programs) -> Command {
        let mut command = Command::new(&programs.rouse);
        command
            .arg("up")
            .args(&self.arguments)
            .args(["--drain-timeout", "30s"].iter().filter(|_| self.waits_longer()))
            .envs(self.environment.iter().cloned())
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }
}

/// A running `rouse up`.
#[derive(Debug)]
pub struct Rouse {
    /// Where requests go.
    pub address: SocketAddr,
    /// Its admin API.
    pub admin: Admin,
    /// What it printed.
    pub output: Output,
    /// Its process.
    pub pid: u32,
    child: Child,
    host: String,
    dir: TempDir,
}

impl Rouse {
    /// Starts it in a folder of its own and waits until it listens.
    pub async fn start(programs: &Programs, config: Config) -> Self {
        let host = config.apps().first().map(App::host).unwrap_or_default();
        let mut rouse = Self::start_with(programs, &config.yaml(programs), config.arguments()).await;
        rouse.host = host;
        rouse
    }

    /// The same with this `rouse.yaml`.
    pub async fn start_with(programs: &Programs, yaml: &str, arguments: &[String]) -> Self {
        let launch = Launch::of(yaml);
        let file = launch.path("rouse.yaml").display().to_string();
        arguments.iter().fold(launch.argument(file), Launch::argument).up(programs).await
    }

    /// The folder it runs in.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// The target of its first app.
    pub fn target(&self, cold: bool) -> Target {
        let gateway = Gateway { pid: self.pid, admin: self.admin.clone(), cold, sidecar: false };
        Target { address: self.address, host: self.host.clone(), gateway: Some(gateway) }
    }

    /// Waits until a pod of the app is ready.
    pub async fn ready(&self, app: &str) {
        self.admin
            .until(app, "a ready pod", |service| service.endpoints.iter().any(|pod| pod.state == "Ready"))
            .await;
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        proc::signal(self.pid, signal);
    }

    /// `rouse` with these arguments, pointed at this one's admin API.
    pub async fn ask(&self, programs: &Programs, arguments: &[&str]) -> Ran {
        run(self.asking(programs, arguments)).await
    }

    /// The same command, not started yet.
    pub fn asking(&self, programs: &Programs, arguments: &[&str]) -> Command {
        let mut command = Command::new(&programs.rouse);
        command.args(arguments).args(["--admin", &self.admin.address().to_string()]);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Puts another `rouse.yaml` in the place of the old one, as an editor does.
    pub fn replace_file(&self, yaml: &str) {
        let (new, file) = (self.dir.path().join(".rouse.yaml.new"), self.dir.path().join("rouse.yaml"));
        fs::write(&new, yaml)
            .and_then(|()| fs::rename(&new, &file))
            .unwrap_or_else(|error| panic!("cannot replace the configuration: {error}"));
    }

    /// All its descendant processes.
    pub fn children(&self) -> Vec<Process> {
        proc::descendants(self.pid)
    }

    /// Asks it to stop, and checks that it does: exit code 0, and none of its processes is left.
    pub async fn stop(self) {
        let children = self.children();
        self.signal(Signal::TERM);
        self.stopped(&children).await;
    }

    /// Waits for its end and its last output. Returns the exit code; `None` if a signal ended it.
    pub async fn ended(&mut self) -> Option<i32> {
        daemon::ended(&mut self.child, &mut self.output, "rouse").await
    }

    /// Waits for its end after a signal: exit code 0, and none of `children` is left.
    pub async fn stopped(mut self, children: &[Process]) {
        assert_eq!(self.ended().await, Some(0), "how rouse ended");
        let left = || children.iter().filter(|child| child.runs()).map(|child| child.pid).collect::<Vec<_>>();
        assert!(left().is_empty(), "rouse left processes behind: {:?}", left());
    }
}

impl Drop for Rouse {
    fn drop(&mut self) {
        self.output.show_if_panicking("rouse");
    }
}
