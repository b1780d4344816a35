//! The table of all settings: each with its name, what it may be, its default and what it does. Flags, variables, the
//! file's keys, help, `--check-config` and the documentation are made of it.

mod entries;

use std::fmt;

pub use entries::SETTINGS;

use super::keda::Alias;
use super::value::Kind;

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// `max-hold`: the flag without its dashes, and the file's key.
    pub name: &'static str,
    /// Among which others it is shown.
    pub heading: Heading,
    /// What it may be.
    pub kind: Kind,
    /// What it is if nobody says.
    pub default: Fallback,
    /// What it does.
    pub help: &'static str,
    /// Where it can be set, beside KEDA's variables.
    pub ways: Ways,
    /// KEDA's variables for it, the one that counts first.
    pub aliases: &'static [Alias],
}

/// What a setting is if nobody says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// This, as if it had been written.
    Is(&'static str),
    /// Nothing; what that means, in words.
    Nothing(&'static str),
}

/// Where a setting can be set, beside KEDA's variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ways {
    /// Flag, variable and file.
    All,
    /// Flag and variable; in the file it is the key `part` of each object of the list `list`.
    Part {
        /// The file's key.
        list: &'static str,
        /// The key within.
        part: &'static str,
    },
    /// Only by KEDA's variables: what nobody should use who does not have to.
    KedaOnly,
}

/// The parts of `--help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heading {
    /// Where requests come in.
    Listening,
    /// Certificates.
    Tls,
    /// Where requests go, and what is told along the way.
    Routing,
    /// How long a request may take.
    Timeouts,
    /// How many may wait, and how much they may wake.
    Holds,
    /// What clients and pods may take up.
    Limits,
    /// The way out.
    Leaving,
    /// What is written down.
    Observability,
    /// The cluster.
    Kubernetes,
}

impl Heading {
    /// All of them, as they are shown.
    pub const ALL: [Heading; 9] = [
        Heading::Listening,
        Heading::Tls,
        Heading::Routing,
        Heading::Timeouts,
        Heading::Holds,
        Heading::Limits,
        Heading::Leaving,
        Heading::Observability,
        Heading::Kubernetes,
    ];

    /// As it is shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Heading::Listening => "Listening",
            Heading::Tls => "TLS",
            Heading::Routing => "Routing",
            Heading::Timeouts => "Timeouts",
            Heading::Holds => "Holds and wakes",
            Heading::Limits => "Limits",
            Heading::Leaving => "Leaving",
            Heading::Observability => "Observability",
            Heading::Kubernetes => "Kubernetes",
        }
    }
}

impl fmt::Display for Heading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Fallback {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Fallback::Is(words) | Fallback::Nothing(words) => words,
        }
    }
}

impl Setting {
    /// `--max-hold`.
    pub fn flag(&self) -> Option<String> {
        (self.ways != Ways::KedaOnly).then(|| format!("--{}", self.name))
    }

    /// `ROUSE_MAX_HOLD`.
    pub fn variable(&self) -> Option<String> {
        (self.ways != Ways::KedaOnly).then(|| format!("ROUSE_{}", self.name.replace('-', "_").to_uppercase()))
    }

    /// Its key at the top of the file.
    pub fn key(&self) -> Option<&'static str> {
        match self.ways {
            Ways::All => Some(self.name),
            Ways::Part { list, .. } => Some(list),
            Ways::KedaOnly => None,
        }
    }

    const fn keda(mut self, aliases: &'static [Alias]) -> Self {
        self.aliases = aliases;
        self
    }

    const fn ways(mut self, ways: Ways) -> Self {
        self.ways = ways;
        self
    }
}
