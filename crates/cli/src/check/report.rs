//! The report of `rouse check` as text or JSON: sections of checks, each with its reason and the next step.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

/// The whole report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    /// True if nothing fails.
    passed: bool,
    sections: Vec<Section>,
}

/// Checks that belong together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) checks: Vec<Check>,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    /// The expected condition.
    pub(super) name: String,
    pub(super) result: Outcome,
    /// The reason why it is not met, or a remark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
    /// The next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    Pass,
    /// A feature is missing, but the gateway works.
    Warning,
    /// The gateway does not work.
    Failure,
    NotChecked,
}

impl Section {
    pub(super) fn new(name: impl Into<String>, checks: Vec<Check>) -> Self {
        Self { name: name.into(), checks }
    }
}

impl Check {
    fn new(result: Outcome, name: impl Into<String>) -> Self {
        Self { name: name.into(), result, detail: None, next: None }
    }

    pub(super) fn pass(name: impl Into<String>) -> Self {
        Self::new(Outcome::Pass, name)
    }

    pub(super) fn warning(name: impl Into<String>) -> Self {
        Self::new(Outcome::Warning, name)
    }

    pub(super) fn failure(name: impl Into<String>) -> Self {
        Self::new(Outcome::Failure, name)
    }

    pub(super) fn not_checked(name: impl Into<String>) -> Self {
        Self::new(Outcome::NotChecked, name)
    }

    pub(super) fn because(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()).filter(|detail: &String| !detail.is_empty()), ..self }
    }

    pub(super) fn next(self, next: impl Into<String>) -> Self {
        Self { next: Some(next.into()), ..self }
    }
}

impl Report {
    pub(super) fn new(sections: Vec<Section>) -> Self {
        let mut report = Self { passed: true, sections };
        report.passed = report.count(Outcome::Failure) == 0;
        report
    }

    pub(super) fn count(&self, outcome: Outcome) -> usize {
        let all = self.sections.iter().flat_map(|section| &section.checks);
        all.filter(|check| check.result == outcome).count()
    }

    #[cfg(test)]
    pub(super) fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// As one JSON document.
    pub(super) fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    /// As a list for people.
    pub(super) fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let bold = Style::new().bold();
        for section in &self.sections {
            writeln!(out, "{bold}{}{bold:#}", section.name)?;
            for check in &section.checks {
                let (mark, style) = mark(check.result);
                writeln!(out, "{style}{mark}{style:#} {}", check.name)?;
                for line in check.detail.iter().flat_map(|detail| detail.lines()) {
                    writeln!(out, "    {line}")?;
                }
                for line in check.next.iter().flat_map(|next| next.lines()) {
                    writeln!(out, "    → {line}")?;
                }
            }
            writeln!(out)?;
        }
        let (mark, style) = mark(if self.passed { Outcome::Pass } else { Outcome::Failure });
        writeln!(out, "{style}{mark}{style:#} {}", self.sum())
    }

    /// The summary: how many checks have each result.
    fn sum(&self) -> String {
        let kinds = [
            (Outcome::Failure, "failed"),
            (Outcome::Warning, "with a warning"),
            (Outcome::NotChecked, "not checked"),
            (Outcome::Pass, "passed"),
        ];
        let counts = kinds.map(|(outcome, words)| (self.count(outcome), words));
        let some = counts.iter().filter(|(count, _)| *count > 0);
        some.map(|(count, words)| format!("{count} {words}")).collect::<Vec<_>>().join(", ")
    }
}

fn mark(outcome: Outcome) -> (&'static str, Style) {
    let colour = |colour: AnsiColor| Style::new().bold().fg_color(Some(colour.into()));
    match outcome {
        Outcome::Pass => ("✔", colour(AnsiColor::Green)),
        Outcome::Warning => ("‼", colour(AnsiColor::Yellow)),
        Outcome::Failure => ("✖", colour(AnsiColor::Red)),
        Outcome::NotChecked => ("-", Style::new()),
    }
}
