//! The one place that reads clocks and waits: measuring is what this program is for.

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

/// How often we look at what cannot tell us.
const POLL: Duration = Duration::from_millis(2);

/// Set by a signal to stop; looked at wherever we wait.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Microseconds since 1970: the only clock that two processes share by name.
pub(crate) fn unix_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The time of day.
pub(crate) fn time_of_day() -> SystemTime {
    SystemTime::now()
}

/// How long something takes.
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

/// Asks until there is an answer, but not for longer than `patience`, nor after a signal to stop.
pub(crate) fn until<T>(
    what: &str,
    patience: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    patiently(what, patience, || {
        // First: of what is there at once, there can be many more.
        if INTERRUPTED.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        ask()
    })
}

/// The same, also after a signal to stop: for what must be done then.
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
            return Err(format!("waited {patience:?} in vain: {what}").into());
        }
        thread::sleep(POLL);
    }
}

/// Lets everything come to rest between two measurements.
pub(crate) fn rest(time: Duration) -> Result<()> {
    let began = Stopwatch::start();
    until("rest", time * 2, || Ok((began.elapsed() >= time).then_some(())))
}

/// How an app spends its start.
pub(crate) async fn delay(time: Duration) {
    tokio::time::sleep(time).await;
}

/// From now on SIGINT and SIGTERM let whatever waits fail, so that what was started is ended on the way out.
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
