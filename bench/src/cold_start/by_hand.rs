//! Starts the same app without Rouse, and calls it with curl until it answers.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::Start;
use crate::child::Running;
use crate::clock::unix_micros;
use crate::{Result, ports, tools};

/// How curl retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By its own option. A delay of 0 is its default: 1 s, which doubles each time.
    Retry,
    /// By a shell loop that starts a new curl at once.
    Loop,
}

impl Way {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Way::Retry => "curl --retry",
            Way::Loop => "shell loop of curl",
        }
    }

    fn command(self, url: &str) -> Result<Command> {
        let curl = tools::need("curl", "curl")?;
        let mut command = match self {
            Way::Retry => {
                let mut command = Command::new(curl);
                command.args(["-sSN", "--max-time", "120", "--retry", "100", "--retry-connrefused"]);
                command.args(["--retry-delay", "0", url]);
                command
            }
            Way::Loop => {
                let mut command = Command::new("sh");
                // Bounded, in case the app never listens.
                let script = r#"n=0; until "$1" -sfN --max-time 60 "$2"; do n=$((n+1)); [ $n -lt 20000 ] || exit 1; done"#;
                command.args(["-c", script, "sh"]).arg(curl).arg(url);
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(command)
    }
}

/// Ends curl, or the shell around it, on an early return.
struct Asking(Child);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts the app, calls it until it answers, and stops it.
pub(super) fn by_hand(way: Way, delay: u64) -> Result<Start> {
    let address = ports::free()?;
    let mut asking = way.command(&format!("http://{address}/"))?;
    let mut app = Command::new(std::env::current_exe()?);
    app.arg("app").env("HOST", address.ip().to_string()).env("PORT", address.port().to_string());
    app.env("START_DELAY_MS", delay.to_string());
    let began = unix_micros();
    let mut app = Running::start("the app", &mut app)?;
    let mut asking = Asking(asking.spawn()?);
    let mut answer = asking.0.stdout.take().ok_or("curl has no output")?;
    let mut bytes = vec![0; 1024];
    let first = answer.read(&mut bytes)?;
    let first_byte = unix_micros();
    bytes.truncate(first);
    answer.read_to_end(&mut bytes)?;
    app.until("still runs", Duration::from_secs(1), |_| Some(()))?;
    Start::new(began, first_byte, &String::from_utf8_lossy(&bytes))
}
