//! Clocks and waiting, for the whole benchmark: timestamps, stopwatch, polling with a deadline, and interruption.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a measurement reads real clocks, and other processes cannot notify it"
)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::signal::unix::{SignalKind, signal};

use crate::{Error, Result};

/// The poll interval.
const POLL: Duration = Duration::from_millis(2);

/// Set by SIGINT and SIGTERM; checked wherever we wait.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Microseconds since 1970: a clock that two processes can compare.
pub(crate) fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The time of day.
pub(crate) fn time_of_day() -> SystemTime {
    SystemTime::now()
}

/// Measures elapsed time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// Calls `ask` until it returns a value. Fails after `patience`, and after a signal to stop.
pub(crate) fn until<T>(
    what: &str,
    patience: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    patiently(what, patience, || {
        // Checked first: many waits in a row could each succeed at once.
        if INTERRUPTED.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        ask()
    })
}

/// The same without the check for a signal, for cleanup.
pub(crate) fn patiently<T>(
    what: &str,
    patience: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let began = Stopwatch::start();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if began.elapsed() > patience {
            return Err(format!("timed out after {patience:?}: {what}").into());
        }
        thread::sleep(POLL);
    }
}

/// Pauses between two measurements.
pub(crate) fn rest(time: Duration) -> Result<()> {
    let began = Stopwatch::start();
    until("rest", time * 2, || Ok((began.elapsed() >= time).then_some(())))
}

/// Sleeps, for an app that starts slowly.
pub(crate) async fn delay(time: Duration) {
    tokio::time::sleep(time).await;
}

/// From now on SIGINT and SIGTERM make every wait fail, so that child processes are ended on the way out.
pub(crate) fn watch_for_signals() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut term, mut int) = runtime.block_on(async {
        Ok::<_, Error>((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
    })?;
    let watch = move || {
        runtime.block_on(async {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        });
        INTERRUPTED.store(true, Ordering::Relaxed);
    };
    // Ends with the process: nothing to join.
    thread::Builder::new().name("signals".into()).spawn(watch)?;
    Ok(())
}
