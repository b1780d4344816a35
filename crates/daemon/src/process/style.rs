//! Colours, and the text of cold starts, warnings and errors in output for people.

use std::time::Duration;

use anstyle::{AnsiColor, Style};
use rouse_core::cold_start::{ColdStart, ColdStartOutcome, Phase};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// The colours of apps. Not red, which marks errors; not black or white, which some terminals have as background.
const APPS: [AnsiColor; 8] = [
    AnsiColor::Cyan,
    AnsiColor::Magenta,
    AnsiColor::Yellow,
    AnsiColor::Blue,
    AnsiColor::Green,
    AnsiColor::BrightCyan,
    AnsiColor::BrightMagenta,
    AnsiColor::BrightBlue,
];

/// The line for a cold start: outcome, total and phases.
pub fn cold_start(cold: &ColdStart) -> String {
    let phases: Vec<String> =
        cold.phases().map(|(phase, took)| format!("{} {}", word(phase), millis(took))).collect();
    let (name, total, phases) = (colored(cold.service.name()), millis(cold.total()), phases.join(" · "));
    let colon = if phases.is_empty() { "" } else { ": " };
    match cold.outcome {
        ColdStartOutcome::Waiting | ColdStartOutcome::Served => {
            format!("{name}: {BOLD}cold start {total} ms{BOLD:#}{colon}{phases}")
        }
        ColdStartOutcome::Unanswered => {
            format!("{name}: {WARNING}cold start without an answer, {total} ms{WARNING:#}{colon}{phases}")
        }
        ColdStartOutcome::Failed => {
            format!(
                "{name}: {WARNING}cold start failed after {}{WARNING:#}{colon}{phases}",
                seconds(cold.total())
            )
        }
        ColdStartOutcome::Abandoned => {
            let after = seconds(cold.total());
            format!(
                "{name}: {WARNING}cold start abandoned: all clients disconnected after {after}{WARNING:#}{colon}{phases}"
            )
        }
    }
}

fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::FirstByte => "first byte",
        other => other.as_str(),
    }
}

/// Milliseconds, with one decimal below 10: `0.3`, `7.2`, `231`.
pub(crate) fn millis(took: Duration) -> String {
    let tenths = (took.as_micros() + 50) / 100;
    match (tenths / 10, tenths % 10) {
        (whole @ 0..10, tenth @ 1..) => format!("{whole}.{tenth}"),
        (whole, _) => whole.to_string(),
    }
}

/// Seconds, with one decimal below 10: `5 s`, `0.3 s`.
fn seconds(took: Duration) -> String {
    let tenths = (took.as_millis() + 50) / 100;
    match (tenths / 10, tenths % 10) {
        (whole @ 0..10, tenth @ 1..) => format!("{whole}.{tenth} s"),
        (whole, _) => format!("{whole} s"),
    }
}

/// The line for a warning.
pub fn warning(text: &str) -> String {
    format!("{WARNING}warning:{WARNING:#} {text}")
}

/// The line for an error.
pub fn error(text: &str) -> String {
    format!("{BAD}error:{BAD:#} {text}")
}

pub(crate) fn colored(app: &str) -> String {
    let color = color(app);
    format!("{color}{app}{color:#}")
}

/// The colour of an app, always the same for its name.
pub(crate) fn color(app: &str) -> Style {
    let place = app.bytes().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    APPS.get(place % APPS.len()).copied().unwrap_or(AnsiColor::Cyan).on_default()
}
