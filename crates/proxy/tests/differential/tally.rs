//! Counts what the fuzz covered, and asserts that enough requests of every kind were forwarded and refused.

use std::collections::BTreeMap;
use std::fmt;

use crate::judge::Verdict;
use crate::reader::{End, View};

/// Counts over all cases.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    cases: u64,
    forwarding: u64,
    refused: u64,
    forwarded: usize,
    asked: usize,
    pub(crate) connections: u64,
    ends: BTreeMap<&'static str, u64>,
    rules: BTreeMap<&'static str, u64>,
    stricter: BTreeMap<&'static str, u64>,
}

/// The faults that the reader can report; each must occur.
const RULES: [&str; 30] = [
    "CONNECT",
    "Host",
    "another host",
    "authority",
    "bare LF",
    "beyond ASCII",
    "chunk extension",
    "chunk size",
    "coding",
    "coding in HTTP/1.0",
    "empty lines",
    "end of a chunk",
    "folded",
    "header name",
    "header value",
    "length",
    "length and coding",
    "method",
    "no Host",
    "no colon",
    "request line",
    "scheme",
    "target",
    "target form",
    "trailer",
    "two Hosts",
    "too much",
    "two codings",
    "two lengths",
    "version",
];

impl Tally {
    pub(crate) fn add(&mut self, view: &View, verdict: &Verdict) {
        self.cases += 1;
        self.asked += view.asked.len();
        self.forwarded += verdict.forwarded;
        self.forwarding += u64::from(verdict.forwarded > 0);
        let end = match view.end {
            End::Clean => "whole",
            End::Closed => "closed by a request",
            End::BadHead(_) => "bad head",
            End::BadBody(..) => "bad body",
            End::InHead => "cut in a head",
            End::InBody(_) => "cut in a body",
        };
        *self.ends.entry(end).or_default() += 1;
        if let Some(rule) = verdict.refused {
            *self.rules.entry(rule).or_default() += 1;
        }
        if let Some(class) = verdict.stricter {
            *self.stricter.entry(class).or_default() += 1;
        }
        self.refused += u64::from(verdict.refused.is_some() || verdict.stricter.is_some());
    }

    /// Asserts that the coverage is sufficient.
    pub(crate) fn is_worth_something(&self) {
        assert!(self.forwarding * 5 >= self.cases, "too little was forwarded\n{self}");
        assert!(self.refused * 5 >= self.cases, "too little was refused\n{self}");
        for rule in RULES {
            assert!(self.rules.contains_key(rule), "never seen: {rule}\n{self}");
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cases, forwarding, refused, forwarded, asked, connections, .. } = self;
        writeln!(
            f,
            "{cases} cases on {connections} connections: {asked} whole requests, {forwarded} forwarded"
        )?;
        writeln!(f, "{forwarding} cases had something forwarded, {refused} something refused")?;
        for (title, counts) in [
            ("ends", &self.ends),
            ("refused", &self.rules),
            ("refused although it is allowed", &self.stricter),
        ] {
            writeln!(f, "{title}:")?;
            for (what, count) in counts {
                writeln!(f, "  {count:>8} {what}")?;
            }
        }
        Ok(())
    }
}
