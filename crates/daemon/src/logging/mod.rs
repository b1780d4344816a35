//! The log of a long-running command: structured events on stderr, as text or JSON lines.
//!
//! Events are written by one thread from a bounded queue, so that a slow reader of stderr holds up no other thread; lines
//! that do not fit are counted. Each place in the code that logs has a rate limit, so that input from the network cannot
//! flood the log; what is suppressed is counted and reported.

mod filter;
mod rate_limit;

use std::error::Error as _;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::time::Duration;

use rouse_config::settings::{Choice, Setting, Values};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::FilterExt as _;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};

pub use filter::{Directives, LogFilter};
pub use rate_limit::RateLimit;

use crate::failure::{CommandError, failed};
use crate::process::console::{Printer, PrinterThread};

/// How often suppressed messages are reported.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people: time, level, target, message, fields.
    Text,
    /// A JSON object per line.
    Json,
}

/// `--log-format`.
pub static LOG_FORMAT: Setting<LogFormat> = Setting::new(
    "log-format",
    &Choice(&[("text", LogFormat::Text), ("json", LogFormat::Json)]),
    || LogFormat::Text,
    "The format of the log on standard error: text or json",
);

/// `--log-level`.
pub static LOG_LEVEL: Setting<LogFilter> = Setting::new(
    "log-level",
    &Directives,
    LogFilter::default,
    "What is logged: off, error, warn, info, debug or trace, or a level for each part of the program, like \
     info,rouse_kube=debug",
)
.aliases(&[filter::RUST_LOG]);

/// The log of this process. Closing it writes the queued lines.
#[derive(Debug)]
pub(crate) struct Log {
    thread: PrinterThread,
    limit: Arc<RateLimit>,
    format: LogFormat,
}

impl Log {
    /// Writes all events of this process to stderr from now on, as `values` say.
    pub(crate) fn start(values: &Values) -> Result<Self, CommandError> {
        let format = values.get(&LOG_FORMAT);
        let lost = match format {
            LogFormat::Text => lost_text,
            LogFormat::Json => lost_json,
        };
        let (printer, thread) = Printer::start(io::stderr(), lost)
            .map_err(failed("cannot start the thread that writes the log"))?;
        let colours =
            io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let limit = Arc::new(RateLimit::default());
        let subscriber =
            subscriber(&values.get(&LOG_LEVEL), format, colours, Arc::clone(&limit), LogWriter(printer));
        // It fails if a test has set one already.
        tracing::subscriber::set_global_default(subscriber).ok();
        Ok(Self { thread, limit, format })
    }

    /// Reports suppressed messages from time to time. Never returns.
    pub(crate) fn report_suppressed(&self) -> impl Future<Output = ()> + Send + use<> {
        let limit = Arc::clone(&self.limit);
        async move {
            let mut ticks = tokio::time::interval(REPORT_EVERY);
            loop {
                ticks.tick().await;
                limit.report();
            }
        }
    }

    /// Logs the error that ends the process if the log is for machines: a line that is not JSON would break its reader. People
    /// read the error as the command prints it.
    pub(crate) fn log_failure(&self, failure: CommandError) -> CommandError {
        if self.format == LogFormat::Text || matches!(failure, CommandError::ReaderGone) {
            return failure;
        }
        tracing::error!(error = failure.source().map(display), "{failure}");
        CommandError::Logged(Box::new(failure))
    }

    /// Writes the queued lines, for at most `within`.
    pub(crate) async fn close(self, within: Duration) {
        self.limit.report();
        self.thread.finish(within).await;
    }
}

/// Builds the subscriber that filters and formats events.
pub fn subscriber<W>(
    filter: &LogFilter,
    format: LogFormat,
    colours: bool,
    limit: Arc<RateLimit>,
    writer: W,
) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = EnvFilter::builder().parse_lossy(filter.directives()).and(rate_limit::Limited(limit));
    let layer = tracing_subscriber::fmt::layer().with_writer(writer);
    let layer = match format {
        LogFormat::Text => layer.with_ansi(colours).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    Box::new(tracing_subscriber::registry().with(layer.with_filter(filter)))
}

/// Hands each line to the thread that writes.
struct LogWriter(Printer);

impl<'w> MakeWriter<'w> for LogWriter {
    type Writer = &'w Self;

    fn make_writer(&'w self) -> &'w Self {
        self
    }
}

impl io::Write for &LogWriter {
    /// One call has one whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0.print(text.trim_end_matches('\n'));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lost_text(count: u64) -> String {
    format!("… {count} lines not shown: they came faster than they could be written")
}

fn lost_json(count: u64) -> String {
    let message = "lines not shown: they came faster than they could be written";
    serde_json::json!({"level": "WARN", "message": message, "lost": count}).to_string()
}

#[cfg(test)]
mod tests;
