//! Collects warnings and notes about the input, and prints a limited number of them on stderr.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use crate::input::printable;

/// How many lines of a kind are printed. A broken dump of a large cluster could give a million.
const SHOWN: usize = 20;

/// Warnings and notes: collected while reading, printed before the output.
#[derive(Debug, Default)]
pub(super) struct Notes {
    warnings: Lines,
    remarks: Lines,
    skipped: BTreeMap<String, usize>,
    skipped_otherwise: usize,
}

#[derive(Debug, Default)]
struct Lines {
    shown: Vec<String>,
    more: usize,
}

impl Lines {
    fn push(&mut self, line: String) {
        if self.shown.len() < SHOWN {
            self.shown.push(line);
        } else {
            self.more += 1;
        }
    }
}

impl Notes {
    /// Adds a warning: a part of the input is wrong, and ignored.
    pub(super) fn warn(&mut self, line: impl Into<String>) {
        self.warnings.push(line.into());
    }

    /// Adds a note: the input is valid, but the output could be misread.
    pub(super) fn note(&mut self, line: impl Into<String>) {
        self.remarks.push(line.into());
    }

    /// Counts an object of a kind that is not read.
    pub(super) fn skipped(&mut self, api_version: &str, kind: &str) {
        let what = format!("{kind} ({api_version})");
        if self.skipped.len() < SHOWN || self.skipped.contains_key(&what) {
            *self.skipped.entry(what).or_default() += 1;
        } else {
            self.skipped_otherwise += 1;
        }
    }

    /// Prints everything, the most important first. `needed` names the kinds that are read.
    pub(super) fn print(&self, err: &mut dyn Write, needed: &str) -> io::Result<()> {
        let yellow = Style::new().bold().fg_color(Some(AnsiColor::Yellow.into()));
        let cyan = Style::new().bold().fg_color(Some(AnsiColor::Cyan.into()));
        for (lines, label, style) in [(&self.warnings, "warning", yellow), (&self.remarks, "note", cyan)] {
            for line in &lines.shown {
                writeln!(err, "{style}{label}:{style:#} {}", printable(line))?;
            }
            if lines.more > 0 {
                writeln!(err, "{style}{label}:{style:#} … and {} more like these", lines.more)?;
            }
        }
        let others = (self.skipped_otherwise > 0).then_some(("other kinds", self.skipped_otherwise));
        let skipped = self.skipped.iter().map(|(what, count)| (what.as_str(), *count)).chain(others);
        for (what, count) in skipped {
            let objects = if count == 1 { "object" } else { "objects" };
            let what = printable(what);
            writeln!(
                err,
                "{yellow}warning:{yellow:#} skipped {count} {objects} of kind {what}; only {needed} are read"
            )?;
        }
        Ok(())
    }
}
