//! The filter of the log (`--log-level`, `RUST_LOG`): a level, or a level for each part of the program.

use std::path::Path;

use rouse_config::settings::{Alias, SettingKind, Translated};
use tracing_subscriber::EnvFilter;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
const ALLOWED: &str = "off, error, warn, info, debug or trace, or levels of parts of the program, separated by commas, like \
                       info,rouse_kube=debug";

/// The filter of the log, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl LogFilter {
    /// The directives for the subscriber. A level without a target applies to Rouse's own crates: libraries log only warnings,
    /// unless a
    /// directive names them, since their details may repeat what clients send.
    pub(super) fn directives(&self) -> String {
        let one = |part: &str| match part.trim() {
            quiet @ ("off" | "error" | "warn") => quiet.to_owned(),
            level if LEVELS.contains(&level) => format!("warn,rouse={level}"),
            other => other.to_owned(),
        };
        self.0.split(',').map(one).collect::<Vec<_>>().join(",")
    }
}

/// The kind of `--log-level`.
#[derive(Debug, Clone, Copy)]
pub struct Directives;

impl SettingKind for Directives {
    type Value = LogFilter;

    fn placeholder(&self) -> &'static str {
        "LEVEL"
    }

    fn allowed(&self) -> String {
        ALLOWED.to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<LogFilter, String> {
        // Reject a bare word that is not a level: it would be read as a target, and everything of it would be logged.
        let is_clear = |part: &str| LEVELS.contains(&part.trim()) || part.contains('=');
        let filter = LogFilter(text.to_owned());
        let good = text.split(',').all(is_clear) && EnvFilter::builder().parse(filter.directives()).is_ok();
        if good { Ok(filter) } else { Err(self.allowed()) }
    }

    fn show(&self, value: &LogFilter) -> String {
        value.0.clone()
    }
}

/// The usual variable of Rust programs, where a target without a level means `trace`.
pub(super) const RUST_LOG: Alias = Alias {
    name: "RUST_LOG",
    successor: None,
    translate: |text, _| {
        let one = |part: &str| match part.trim() {
            part if part.contains('=') => part.to_owned(),
            part => match part.to_lowercase() {
                level if LEVELS.contains(&&*level) => level,
                _ => format!("{part}=trace"),
            },
        };
        let parts = text.split(',').filter(|part| !part.trim().is_empty());
        Translated::Value(parts.map(one).collect::<Vec<_>>().join(","))
    },
};
