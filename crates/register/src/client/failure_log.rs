//! Logs failed registrations and look-ups with their reason, at a limited rate.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Duration;

use rouse_core::budget::TokenBucket;
use rouse_core::time::Moment;

use super::http_client::{SendError, Severity};

/// One message in this time, after a burst.
const EVERY: Duration = Duration::from_secs(10);
const BURST: u32 = 5;

/// The log of one client. A gateway that is away for hours must not fill the log of every pod.
#[derive(Debug)]
pub(super) struct FailureLog {
    bucket: TokenBucket,
    /// Failures since the last message.
    suppressed: u64,
}

impl FailureLog {
    pub(super) fn new(now: Moment) -> Self {
        Self { bucket: TokenBucket::every(EVERY, BURST, now), suppressed: 0 }
    }

    /// Whether a message may be logged, and how many were not.
    fn pass(&mut self, now: Moment) -> Option<u64> {
        if !self.bucket.has(now) {
            self.suppressed += 1;
            return None;
        }
        self.bucket.take();
        Some(std::mem::take(&mut self.suppressed))
    }

    /// A registration failed. The next one follows after `pause`.
    pub(super) fn failed(&mut self, gateway: SocketAddr, error: &SendError, pause: Duration, now: Moment) {
        let Some(suppressed) = self.pass(now) else { return };
        let retry_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        match error.severity() {
            Severity::Warn => {
                tracing::warn!(%gateway, reason = %error, retry_ms, suppressed, "a registration failed");
            }
            Severity::Error => {
                tracing::error!(%gateway, reason = %error, retry_ms, suppressed, "a registration failed");
            }
        }
    }

    /// The gateways could not be looked up.
    pub(super) fn lookup_failed(&mut self, name: &str, reason: &dyn Display, now: Moment) {
        let Some(suppressed) = self.pass(now) else { return };
        tracing::error!(name, %reason, suppressed, "cannot look up the gateways");
    }
}
