//! The loads, and the outcomes of their requests. Each load comes from a separate process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use crate::args::Handshake;
use crate::h2load::{self, Kept};
use crate::role::connection_load::Tally;
use crate::{Result, child};

/// Longer than any run; a run that hangs is ended.
const PATIENCE: Duration = Duration::from_mins(2);

/// The address and host of requests.
#[derive(Debug, Clone)]
pub(crate) struct ProxyAddress {
    pub(crate) address: SocketAddr,
    pub(crate) host: String,
    /// The server's certificate; `None`: without TLS.
    pub(crate) certificate: Option<PathBuf>,
}

/// The listener of a proxy that gets the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListenerKind {
    Http1,
    H2c,
    /// HTTP/1.1 over TLS.
    Tls,
}

/// How requests are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Load {
    /// Over persistent connections, by h2load.
    Kept(Kept),
    /// Each over a new connection; the number is the concurrency.
    Fresh(u32),
    /// The same over TLS.
    Handshakes(Handshake, u32),
}

/// One column of the result.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) entrance: ListenerKind,
    pub(crate) load: Load,
    /// Requests per run.
    pub(crate) requests: u32,
    /// Uncounted requests before each run: connection pools do not last from one run of a proxy to its next.
    pub(crate) before: u32,
}

/// The outcomes of the requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) succeeded: u32,
    /// Including those with the wrong kind of handshake.
    pub(crate) failed: u32,
    pub(crate) per_second: f64,
    pub(crate) handshakes: Option<Handshakes>,
}

/// The handshakes of a run, as the client saw them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Handshakes {
    pub(crate) full: u32,
    pub(crate) resumed: u32,
}

impl Scenario {
    /// With this percentage of its requests, but enough for every connection.
    pub(crate) fn scaled(self, percent: u32) -> Self {
        let least = match self.load {
            Load::Kept(kept) => kept.connections * 2,
            Load::Fresh(at_once) | Load::Handshakes(_, at_once) => at_once * 2,
        };
        let part = |requests: u32| requests / 100 * percent;
        Self { requests: part(self.requests).max(least), before: part(self.before), ..self }
    }
}

/// Sends `requests` requests and waits for the end.
pub(crate) fn send(load: Load, address: &ProxyAddress, requests: u32) -> Result<Outcome> {
    match load {
        Load::Kept(kept) => h2load::run(kept, address, requests),
        Load::Fresh(at_once) => fresh(None, at_once, address, requests),
        Load::Handshakes(handshake, at_once) => fresh(Some(handshake), at_once, address, requests),
    }
}

fn fresh(
    handshake: Option<Handshake>,
    at_once: u32,
    address: &ProxyAddress,
    requests: u32,
) -> Result<Outcome> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["connect", "--address", &address.address.to_string(), "--host", &address.host]);
    command.args(["--count", &requests.to_string(), "--at-once", &at_once.to_string()]);
    if let Some(handshake) = handshake {
        let certificate =
            address.certificate.as_deref().ok_or("a handshake needs a listener with a certificate")?;
        command.args(["--handshake", name(handshake), "--certificate"]).arg(certificate);
    }
    let text = child::output("the load of new connections", &mut command, PATIENCE)?;
    let tally = serde_json::from_str(&text)?;
    Ok(handshake.map_or_else(|| outcome(&tally, 0, None), |asked| judge(&tally, asked, at_once)))
}

fn name(handshake: Handshake) -> &'static str {
    match handshake {
        Handshake::Full => "full",
        Handshake::Resumed => "resumed",
    }
}

/// Counts a request after the wrong kind of handshake as failed. The first connection of each client has no ticket.
fn judge(tally: &Tally, asked: Handshake, at_once: u32) -> Outcome {
    let Tally { succeeded, full, resumed, .. } = *tally;
    let right = match asked {
        Handshake::Full => full,
        Handshake::Resumed => resumed + full.min(at_once),
    };
    outcome(tally, succeeded.saturating_sub(right), Some(Handshakes { full, resumed }))
}

fn outcome(tally: &Tally, wrong: u32, handshakes: Option<Handshakes>) -> Outcome {
    let Tally { succeeded, failed, per_second, .. } = *tally;
    Outcome { succeeded: succeeded - wrong, failed: failed + wrong, per_second, handshakes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_run_still_uses_every_connection() {
        let entrance = ListenerKind::Http1;
        let scenario = Scenario { name: "", entrance, load: Load::Fresh(50), requests: 8_000, before: 0 };
        for (percent, expected) in [(100, 8_000), (50, 4_000), (1, 100), (200, 16_000)] {
            assert_eq!(scenario.scaled(percent).requests, expected, "{percent}");
        }
    }

    #[test]
    fn a_request_after_another_handshake_than_was_asked_for_has_failed() {
        use Handshake::{Full, Resumed};
        for (asked, full, resumed, expected) in [
            (Full, 100, 0, (100, 0)),
            (Full, 99, 1, (99, 1)),
            (Resumed, 10, 90, (100, 0)),
            (Resumed, 11, 89, (99, 1)),
            (Resumed, 100, 0, (10, 90)),
            // Neither kind: a handshake with a HelloRetryRequest.
            (Full, 98, 0, (98, 2)),
            (Resumed, 0, 98, (98, 2)),
        ] {
            let tally = Tally { succeeded: 100, failed: 0, per_second: 1.0, full, resumed };
            let outcome = judge(&tally, asked, 10);
            assert_eq!((outcome.succeeded, outcome.failed), expected, "{asked:?} {full} {resumed}");
            assert_eq!(outcome.handshakes, Some(Handshakes { full, resumed }));
        }
    }

    #[test]
    fn what_failed_anyway_stays_failed() {
        let tally = Tally { succeeded: 90, failed: 10, per_second: 1.0, full: 80, resumed: 10 };
        let outcome = judge(&tally, Handshake::Full, 10);
        assert_eq!((outcome.succeeded, outcome.failed), (80, 20));
    }
}
