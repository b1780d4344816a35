//! Starts, signals and stops a `rouse gateway` process, which follows the cluster of a kubeconfig.

use std::ffi::OsStr;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;
use tokio::process::{Child, Command};

use crate::Programs;
use crate::admin::Admin;
use crate::command::{Ran, run};
use crate::daemon::{self, Daemon};
use crate::output::Output;
use crate::proc;
use crate::target::{self, Target};
use crate::wait::patiently;

/// How `rouse gateway` is started: on free ports, and without a shutdown delay.
#[derive(Debug, Clone)]
pub struct Launch {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Launch {
    /// With this kubeconfig.
    pub fn new(kubeconfig: &Path) -> Self {
        let launch = Self { arguments: Vec::new(), environment: Vec::new() };
        launch
            .flag("--kubeconfig", kubeconfig.display())
            .flag("--listen", "127.0.0.1:0")
            .flag("--admin", "127.0.0.1:0")
            .flag("--shutdown-delay", "0s")
    }

    /// With a flag and its value. Given again, it replaces the former value.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl Display) -> Self {
        let value = value.to_string();
        match self.arguments.iter().position(|argument| argument == name) {
            Some(at) => self.arguments[at + 1] = value,
            None => self.arguments.extend([name.to_owned(), value]),
        }
        self
    }

    /// Without a flag that was set.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        if let Some(at) = self.arguments.iter().position(|argument| argument == name) {
            self.arguments.drain(at..=at + 1);
        }
        self
    }

    /// With an argument that has no value.
    #[must_use]
    pub fn switch(mut self, name: &str) -> Self {
        self.arguments.push(name.to_owned());
        self
    }

    /// With a variable in its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Display) -> Self {
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// Runs it to its end, for when it cannot start.
    pub async fn refused(&self, programs: &Programs) -> Ran {
        run(self.command(programs)).await
    }

    /// Starts it and waits until it is ready: it listens, and knows what the cluster has.
    pub async fn start(self, programs: &Programs) -> Gateway {
        let gateway = self.start_unready(programs).await;
        gateway.ready().await;
        gateway
    }

    /// Starts it and waits until it listens.
    pub async fn start_unready(self, programs: &Programs) -> Gateway {
        let Daemon { address, admin, output, pid, child } =
            Daemon::start(self.command(programs), "the gateway").await;
        Gateway { address, admin, output, pid, child }
    }

    fn command(&self, programs: &Programs) -> Command {
        let mut command = Command::new(&programs.rouse);
        // Settings in the environment of the test run must not reach the gateway.
        let foreign = |name: &OsStr| {
            let name = name.to_string_lossy();
            name.starts_with("ROUSE_") || name.starts_with("KEDA_") || name == "KUBECONFIG"
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| foreign(name)) {
            command.env_remove(name);
        }
        command
            .arg("gateway")
            .args(&self.arguments)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }
}

/// A running `rouse gateway`.
#[derive(Debug)]
pub struct Gateway {
    /// Where requests go.
    pub address: SocketAddr,
    /// Its admin API.
    pub admin: Admin,
    /// What it printed.
    pub output: Output,
    /// Its process.
    pub pid: u32,
    child: Child,
}

impl Gateway {
    /// Where requests for `host` go.
    pub fn target(&self, host: &str) -> Target {
        let gateway =
            target::Gateway { pid: self.pid, admin: self.admin.clone(), cold: false, sidecar: false };
        Target { address: self.address, host: host.to_owned(), gateway: Some(gateway) }
    }

    /// Waits until `/readyz` reports that it is ready.
    pub async fn ready(&self) {
        patiently("the gateway to be ready", async || {
            (self.admin.get("/readyz").await.status == 200).then_some(())
        })
        .await;
    }

    /// The remote addresses of all its connections.
    pub fn connections(&self) -> Vec<SocketAddr> {
        proc::connections(self.pid)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        proc::signal(self.pid, signal);
    }

    /// Asks it to stop, and waits until it has: exit code 0.
    pub async fn stop(mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.ended().await, Some(0), "how the gateway ended");
    }

    /// Ends it at once.
    pub async fn kill(mut self) {
        self.signal(Signal::KILL);
        assert_eq!(self.ended().await, None, "how the gateway ended");
    }

    /// Waits for its end and its last output. Returns the exit code; `None` if a signal ended it.
    pub async fn ended(&mut self) -> Option<i32> {
        daemon::ended(&mut self.child, &mut self.output, "the gateway").await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.output.show_if_panicking("the gateway");
    }
}
