//! `rouse gateway` under test: a process of this machine that follows some cluster.

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
use crate::output::Output;
use crate::proc;
use crate::rouse::addresses;
use crate::target::{self, Target};
use crate::wait::{patiently, within};

/// How `rouse gateway` is started: on ports of its own, without a moment's delay when it leaves.
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
        let mut child = self
            .command(programs)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start the gateway: {error}"));
        let pid = child.id().unwrap_or_else(|| panic!("the gateway has no process"));
        let output = Output::of(&mut child);
        let (address, admin) = addresses(&output, &mut child).await;
        Gateway { address, admin: Admin::at(admin), output, pid, child }
    }

    fn command(&self, programs: &Programs) -> Command {
        let mut command = Command::new(&programs.rouse);
        // What is set where the tests run must not count.
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
        let gateway = target::Gateway { pid: self.pid, admin: self.admin.clone(), cold: false };
        Target { address: self.address, host: host.to_owned(), gateway: Some(gateway) }
    }

    /// Waits until it says that it is ready.
    pub async fn ready(&self) {
        patiently("the gateway to be ready", async || {
            (self.admin.get("/readyz").await.status == 200).then_some(())
        })
        .await;
    }

    /// Where its connections lead, all of them.
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

    /// Waits for its end: the exit code, if it was no signal. All that it printed is there by then.
    pub async fn ended(&mut self) -> Option<i32> {
        let status = within("the gateway to end", self.child.wait()).await;
        self.output.complete().await;
        status.unwrap_or_else(|error| panic!("cannot wait for the gateway: {error}")).code()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.output.show_if_panicking("the gateway");
    }
}
