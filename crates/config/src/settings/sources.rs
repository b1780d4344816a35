//! The origins of settings, the environment, and the problems and warnings about settings.

use std::collections::BTreeMap;
use std::fmt;

use crate::document::Mark;
use crate::errors::SHOWN;

/// Where a value comes from, in the order in which problems are reported.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A flag: `--max-hold`.
    Flag(String),
    /// A variable: `ROUSE_MAX_HOLD`.
    Variable(String),
    /// The file.
    File {
        /// The name that the user gave.
        name: String,
        /// The line and column.
        mark: Mark,
    },
    /// The default: no source sets it.
    Default,
}

/// `--max-hold`, `ROUSE_MAX_HOLD`, `gateway.yaml:3:1`, `default`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(name) | Origin::Variable(name) => f.write_str(name),
            Origin::File { name, mark } => write!(f, "{name}:{}:{}", mark.line, mark.column),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// One problem with a setting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The origin of the wrong value.
    pub origin: Origin,
    /// What is wrong, and what is allowed.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.what)
    }
}

/// The problems of all sources: at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// `value` if there are no `problems`. The same problem is reported once.
    pub fn none_in<T>(mut problems: Vec<Problem>, value: T) -> Result<T, Self> {
        problems.sort();
        problems.dedup();
        if problems.is_empty() { Ok(value) } else { Err(Self(problems)) }
    }

    /// All of them, in the order in which they are reported.
    pub fn all(&self) -> &[Problem] {
        &self.0
    }
}

/// One line per problem, and the next step.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        // The caller prints `error:` before the first line: give it a line of its own for several problems.
        if count > 1 {
            writeln!(f, "{count} settings are wrong")?;
        }
        for problem in self.0.iter().take(SHOWN) {
            writeln!(f, "{problem}")?;
        }
        match count.saturating_sub(SHOWN) {
            0 if count == 1 => f.write_str("correct it and try again"),
            0 => f.write_str("correct them and try again"),
            more => write!(f, "and {more} more: correct them and try again"),
        }
    }
}

impl std::error::Error for Problems {}

/// A warning about a setting: the command starts all the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SettingWarning {
    /// The origin of the setting.
    pub origin: Origin,
    /// The warning.
    pub what: String,
}

impl fmt::Display for SettingWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.what)
    }
}

/// The environment variables that are set and not empty.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Takes the variables of `all` that are not empty and that Kubernetes did not add for a Service.
    pub fn new(all: impl IntoIterator<Item = (String, String)>) -> Self {
        let counts = |(name, value): &(String, String)| !value.is_empty() && !is_service_link(name, value);
        Self(all.into_iter().filter(counts).collect())
    }

    /// The environment of this process.
    pub fn of_process() -> Self {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self::new(std::env::vars_os().map(|(name, value)| (text(name), text(value))))
    }

    /// The value of `name`, if it is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The names that begin with `prefix`.
    pub fn names<'e>(&'e self, prefix: &'e str) -> impl Iterator<Item = &'e str> {
        self.0.keys().map(String::as_str).filter(move |name| name.starts_with(prefix))
    }
}

/// True for variables that Kubernetes adds to a pod for each Service of its namespace: those of a Service called `rouse` are
/// not settings.
fn is_service_link(name: &str, value: &str) -> bool {
    let link = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let part = |rest: &str| {
        let port = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        port.len() < rest.len() && ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| port.starts_with(protocol))
    };
    let of_port =
        name.match_indices("_PORT_").any(|(at, word)| name.get(at + word.len()..).is_some_and(part));
    link || of_port || name.ends_with("_SERVICE_HOST") || name.contains("_SERVICE_PORT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_kubernetes_adds_for_a_service_are_no_settings() {
        let links = [
            ("ROUSE_SERVICE_HOST", "10.96.0.7"),
            ("ROUSE_SERVICE_PORT", "80"),
            ("ROUSE_SERVICE_PORT_HTTP", "80"),
            ("ROUSE_PORT", "tcp://10.96.0.7:80"),
            ("ROUSE_PORT_80_TCP", "tcp://10.96.0.7:80"),
            ("ROUSE_PORT_80_TCP_PROTO", "tcp"),
            ("ROUSE_PORT_80_TCP_PORT", "80"),
            ("KEDA_HTTP_ADMIN_PORT", "tcp://10.96.0.7:80"),
            ("KEDA_HTTP_SCALER_PORT_9090_TCP_ADDR", "10.96.0.7"),
        ];
        let settings = [("ROUSE_LISTEN", "[::]:80"), ("KEDA_HTTP_ADMIN_PORT", "9090"), ("ROUSE_PORT_X", "1")];
        let both =
            links.iter().chain(&settings).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let kept = Environment::new(both);
        let kept: Vec<_> = ["KEDA_", "ROUSE_"].iter().flat_map(|prefix| kept.names(prefix)).collect();
        assert_eq!(kept, ["KEDA_HTTP_ADMIN_PORT", "ROUSE_LISTEN", "ROUSE_PORT_X"]);
    }
}
