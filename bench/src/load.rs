//! What is sent to a proxy, and what became of it. The load comes from a process of its own.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use crate::h2load::{self, Kept};
use crate::role::connect::Tally;
use crate::{Result, child};

/// No run takes this long; one that hangs is ended.
const PATIENCE: Duration = Duration::from_mins(2);

/// Where requests go, and for which host.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    pub(crate) host: String,
}

/// How requests are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Load {
    /// Over connections that are kept, by h2load.
    Kept(Kept),
    /// Each over a new connection, so many at a time.
    Fresh(u32),
}

/// One column of the result.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) load: Load,
    /// How many requests make one run.
    pub(crate) requests: u32,
}

/// What became of the requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) succeeded: u32,
    pub(crate) failed: u32,
    pub(crate) per_second: f64,
}

impl Scenario {
    /// With so many percent of its requests; enough that each connection has some.
    pub(crate) fn scaled(self, percent: u32) -> Self {
        let least = match self.load {
            Load::Kept(kept) => kept.connections * 2,
            Load::Fresh(at_once) => at_once * 2,
        };
        Self { requests: (self.requests / 100 * percent).max(least), ..self }
    }

    /// Whether it needs HTTP/2.
    pub(crate) fn is_h2c(&self) -> bool {
        matches!(self.load, Load::Kept(Kept { streams: Some(_), .. }))
    }
}

/// Sends so many requests and waits for the end.
pub(crate) fn send(load: Load, door: &Door, requests: u32) -> Result<Outcome> {
    match load {
        Load::Kept(kept) => h2load::run(kept, door, requests),
        Load::Fresh(at_once) => fresh(at_once, door, requests),
    }
}

fn fresh(at_once: u32, door: &Door, requests: u32) -> Result<Outcome> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["connect", "--address", &door.address.to_string(), "--host", &door.host]);
    command.args(["--count", &requests.to_string(), "--at-once", &at_once.to_string()]);
    let text = child::output("the load of new connections", &mut command, PATIENCE)?;
    let Tally { succeeded, failed, per_second } = serde_json::from_str(&text)?;
    Ok(Outcome { succeeded, failed, per_second })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_run_still_uses_every_connection() {
        let scenario = Scenario { name: "", load: Load::Fresh(50), requests: 8_000 };
        for (percent, expected) in [(100, 8_000), (50, 4_000), (1, 100), (200, 16_000)] {
            assert_eq!(scenario.scaled(percent).requests, expected, "{percent}");
        }
    }
}
