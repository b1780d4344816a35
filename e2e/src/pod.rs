//! Runs the test app without a gateway: the control run, which shows that the test itself is right.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Stdio;

use rustix::process::Signal;
use tokio::process::{Child, Command};

use crate::Programs;
use crate::config::App;
use crate::output::Output;
use crate::proc;
use crate::target::Target;
use crate::wait::within;

/// A running app.
#[derive(Debug)]
pub struct Pod {
    /// Where it answers.
    pub target: Target,
    /// What it printed.
    pub output: Output,
    child: Child,
}

impl Pod {
    /// Starts `app` and waits until it listens.
    pub async fn start(programs: &Programs, app: &App) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), programs, app).await
    }

    /// The same at an address of this machine.
    pub async fn start_at(host: IpAddr, programs: &Programs, app: &App) -> Self {
        let mut child = Command::new(&programs.app)
            .envs(app.variables())
            .env("HOST", host.to_string())
            .env("PORT", "0")
            .env("LOG_LISTENING", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start the app: {error}"));
        let output = Output::of(&mut child);
        let address = |line: &str| line.strip_prefix("listening ")?.split_once(" on ")?.1.parse().ok();
        let address = output.find("the app to listen", address).await;
        Self { target: Target::straight(address, app), output, child }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        proc::signal(self.child.id().unwrap_or_default(), signal);
    }

    /// Waits for its end. Returns the exit code; `None` if a signal ended it.
    pub async fn ended(mut self) -> Option<i32> {
        let status = within("the app to end", self.child.wait()).await;
        status.unwrap_or_else(|error| panic!("cannot wait for the app: {error}")).code()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.output.show_if_panicking("the app");
    }
}
