//! `rouse up` under test: started on ports of its own, heard, stopped, and checked to have left nothing behind.

use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::Programs;
use crate::admin::Admin;
use crate::config::{App, Config};
use crate::output::Output;
use crate::proc::{self, Process};
use crate::target::{Gateway, Target};
use crate::wait::{eventually, within};

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

    /// The same, with a file of the test's own words.
    pub async fn start_with(programs: &Programs, yaml: &str, arguments: &[String]) -> Self {
        let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("no temporary folder: {error}"));
        let file = dir.path().join("rouse.yaml");
        fs::write(&file, yaml).unwrap_or_else(|error| panic!("cannot write the configuration: {error}"));
        let mut child = Command::new(&programs.rouse)
            .arg("up")
            .arg(&file)
            .args(arguments)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start rouse: {error}"));
        let pid = child.id().unwrap_or_else(|| panic!("rouse has no process"));
        let output = Output::of(&mut child);
        let (address, admin) = addresses(&output, &mut child).await;
        let host = String::new();
        Self { address, admin: Admin::at(admin), output, pid, child, host, dir }
    }

    /// The folder it runs in.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Where a check of its first app goes.
    pub fn target(&self, cold: bool) -> Target {
        let gateway = Gateway { pid: self.pid, admin: self.admin.clone(), cold };
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

    /// All processes that it started, and these.
    pub fn children(&self) -> Vec<Process> {
        proc::descendants(self.pid)
    }

    /// Asks it to stop, and checks that it does: exit code 0, and none of its processes is left.
    pub async fn stop(self) {
        let children = self.children();
        self.signal(Signal::TERM);
        self.stopped(&children).await;
    }

    /// Waits for its end after a signal: exit code 0, and none of `children` is left.
    pub async fn stopped(mut self, children: &[Process]) {
        let status = within("rouse to end", self.child.wait()).await;
        let status = status.unwrap_or_else(|error| panic!("cannot wait for rouse: {error}"));
        assert_eq!(status.code(), Some(0), "rouse ended with {status}");
        let left = || children.iter().filter(|child| child.runs()).map(|child| child.pid).collect::<Vec<_>>();
        assert!(left().is_empty(), "rouse left processes behind: {:?}", left());
    }
}

impl Drop for Rouse {
    fn drop(&mut self) {
        self.output.show_if_panicking("rouse");
    }
}

/// The addresses that it prints. If it ends instead, what it printed is the failure.
async fn addresses(output: &Output, child: &mut Child) -> (SocketAddr, SocketAddr) {
    let found = |prefix: &str| {
        output.lines().iter().find_map(|line| {
            line.strip_prefix(prefix)?.strip_prefix("http://")?.trim_end_matches('/').parse().ok()
        })
    };
    eventually("rouse to listen", async || {
        if let Ok(Some(status)) = child.try_wait() {
            panic!("rouse ended with {status} instead of listening:\n{}", output.lines().join("\n"));
        }
        Some((found("listening on ")?, found("admin on ")?))
    })
    .await
}
