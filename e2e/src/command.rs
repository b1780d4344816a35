//! Runs a command to its end, and returns its exit code and output.

use tokio::process::Command;

use crate::wait::within;

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ran {
    /// Its standard output. Panics if it failed.
    pub fn ok(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{self:?}");
        self.stdout
    }
}

/// Runs it.
pub async fn run(mut command: Command) -> Ran {
    let what = format!("{:?} to end", command.as_std());
    let output = within(&what, command.kill_on_drop(true).output()).await;
    let output = output.unwrap_or_else(|error| panic!("{what}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ran { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}
