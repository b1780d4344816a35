//! Starts, signals and stops a `rouse controller` process, which follows the cluster of a kubeconfig.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;
use tokio::process::{Child, Command};

use crate::Programs;
use crate::admin::Admin;
use crate::daemon;
use crate::output::Output;
use crate::proc;
use crate::wait::patiently;

/// How `rouse controller` is started: on free ports.
#[derive(Debug, Clone)]
pub struct ControllerLaunch(Vec<String>);

impl ControllerLaunch {
    /// With this kubeconfig.
    pub fn new(kubeconfig: &Path) -> Self {
        let launch = Self(Vec::new()).flag("--kubeconfig", kubeconfig.display());
        launch.flag("--admin", "127.0.0.1:0").flag("--scaler-listen", "127.0.0.1:0")
    }

    /// With a flag and its value.
    #[must_use]
    pub fn flag(mut self, name: &str, value: impl Display) -> Self {
        self.0.extend([name.to_owned(), value.to_string()]);
        self
    }

    /// Takes load reports with this certificate and key, at `address`.
    #[must_use]
    pub fn reports(self, address: &str, cert: &Path, key: &Path) -> Self {
        self.flag("--report-listen", address)
            .flag("--report-tls-cert", cert.display())
            .flag("--report-tls-key", key.display())
    }

    /// Starts it and waits until it listens.
    pub async fn start(self, programs: &Programs) -> Controller {
        let mut command = Command::new(&programs.rouse);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ROUSE_"))
        {
            command.env_remove(name);
        }
        command.arg("controller").args(&self.0).stdin(Stdio::null()).kill_on_drop(true);
        let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("cannot start the controller: {error}"));
        let pid = child.id().unwrap_or_else(|| panic!("the controller has no process"));
        let output = Output::of(&mut child);
        let admin = output.find("the admin address", |line| after(line, "admin on http://")).await;
        let scaler =
            output.find("the address for KEDA", |line| after(line, "KEDA's external scaler on ")).await;
        let reports = if self.0.iter().any(|argument| argument == "--report-listen") {
            Some(output.find("the address for reports", |line| after(line, "load reports on https://")).await)
        } else {
            None
        };
        Controller { admin: Admin::at(admin), reports, scaler, output, pid, child }
    }
}

fn after(line: &str, prefix: &str) -> Option<SocketAddr> {
    line.split_once(prefix)?.1.trim().parse().ok()
}

/// A running `rouse controller`.
#[derive(Debug)]
pub struct Controller {
    /// Its admin API.
    pub admin: Admin,
    /// Where gateways report.
    pub reports: Option<SocketAddr>,
    /// Where KEDA asks.
    pub scaler: SocketAddr,
    /// What it printed.
    pub output: Output,
    /// Its process.
    pub pid: u32,
    child: Child,
}

impl Controller {
    /// Waits until `/readyz` reports that it is ready.
    pub async fn ready(&self) {
        patiently("the controller to be ready", async || {
            (self.admin.get("/readyz").await.status == 200).then_some(())
        })
        .await;
    }

    /// Waits until it leads.
    pub async fn leads(&self) {
        patiently("the controller to lead", async || {
            let metrics = self.admin.metrics().await;
            (metrics.count("rouse_autoscaler_leader", &[]) == 1).then_some(())
        })
        .await;
    }

    /// What it says of all workloads.
    pub async fn scaling(&self) -> serde_json::Value {
        self.admin.get("/api/v1/scaling").await.json()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        proc::signal(self.pid, signal);
    }

    /// Asks it to stop, and waits until it has: exit code 0.
    pub async fn stop(mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.ended().await, Some(0), "how the controller ended");
    }

    /// Ends it at once.
    pub async fn kill(mut self) {
        self.signal(Signal::KILL);
        assert_eq!(self.ended().await, None, "how the controller ended");
    }

    /// Waits for its end and its last output. Returns the exit code; `None` if a signal ended it.
    pub async fn ended(&mut self) -> Option<i32> {
        daemon::ended(&mut self.child, &mut self.output, "the controller").await
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.output.show_if_panicking("the controller");
    }
}
