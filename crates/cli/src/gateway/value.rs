//! What a setting may be: the text that people write → a value, and the value as it is shown.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use rouse_proxy::headers::TrustedProxies;
use rouse_proxy::route::HostPattern;
use serde_json::json;

use crate::admin;
use crate::config::Span;

/// From the largest, so that a size is shown in the fewest digits.
const SIZES: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// What a setting may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Switch,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A length of time.
    Span(RangeInclusive<Span>),
    /// A whole number.
    Count(RangeInclusive<u64>),
    /// A number of bytes.
    Size(RangeInclusive<u64>),
    /// Addresses to listen on, any number of them.
    Addresses,
    /// One address to listen on, which may not be all of the machine's.
    OwnAddress,
    /// A file.
    File,
    /// Any number of files or folders.
    Files,
    /// Networks, or `none`.
    Networks,
    /// The name of a Kubernetes namespace.
    Namespace,
    /// Any number of names of Kubernetes namespaces.
    Namespaces,
    /// Any number of `HOST=NAMESPACE`.
    Assignments,
    /// Any text.
    Text,
}

/// What a setting is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// On or off.
    Switch(bool),
    /// One of the words of its kind.
    Word(&'static str),
    /// A length of time.
    Span(Span),
    /// A whole number.
    Count(u64),
    /// A number of bytes.
    Size(u64),
    /// An address.
    Address(SocketAddr),
    /// A file or folder.
    Path(PathBuf),
    /// Networks, and how they were written.
    Networks(TrustedProxies, String),
    /// A host, and the namespace that it belongs to.
    Assignment(HostPattern, String),
    /// Text.
    Text(String),
    /// Several values of one kind.
    List(Vec<Value>),
}

impl Kind {
    /// Whether it may be given several times.
    pub fn is_list(&self) -> bool {
        matches!(self, Kind::Addresses | Kind::Files | Kind::Namespaces | Kind::Assignments)
    }

    /// What stands for the value in help texts.
    pub fn placeholder(&self) -> &'static str {
        match self {
            Kind::Switch => "BOOL",
            Kind::Word(_) => "WORD",
            Kind::Span(_) => "DURATION",
            Kind::Count(_) => "COUNT",
            Kind::Size(_) => "SIZE",
            Kind::Addresses | Kind::OwnAddress => "ADDRESS",
            Kind::File => "FILE",
            Kind::Files => "PATH",
            Kind::Networks => "NETWORKS",
            Kind::Assignments => "HOST=NAMESPACE",
            Kind::Namespace | Kind::Namespaces | Kind::Text => "NAME",
        }
    }

    /// What is allowed, in words.
    pub fn allowed(&self) -> String {
        match self {
            Kind::Switch => "true or false".to_owned(),
            Kind::Word(words) => either(words),
            Kind::Span(range) => {
                let (least, most) = (range.start(), range.end());
                format!("a duration from {least} to {most}, like 500ms, 30s, 5m or 1h")
            }
            Kind::Count(range) => format!("a whole number from {} to {}", range.start(), range.end()),
            Kind::Size(range) => {
                let (least, most) = (Bytes(*range.start()), Bytes(*range.end()));
                format!("a size from {least} to {most}, like 64KiB or 256MiB")
            }
            Kind::Addresses => "an IP address and a port, like 0.0.0.0:8080 or [::]:8080".to_owned(),
            Kind::OwnAddress => admin::ADDRESS.to_owned(),
            Kind::File | Kind::Files => "a path that is not empty".to_owned(),
            Kind::Networks => "networks like 10.0.0.0/8, separated by commas, or none".to_owned(),
            Kind::Namespace | Kind::Namespaces => {
                "a namespace's name: 1 to 63 lower-case letters, digits and hyphens, with no hyphen at the start or \
                 the end"
                    .to_owned()
            }
            Kind::Assignments => "a host, an equals sign and a namespace, like shop.example.com=shop, \
                                  *.example.com=web or *=web"
                .to_owned(),
            Kind::Text => "text that is not empty".to_owned(),
        }
    }

    /// What `text` says; a list kind reads one element. Paths are relative to `folder`. If it is refused: what is
    /// allowed.
    pub fn parse(&self, text: &str, folder: &Path) -> Result<Value, String> {
        let bad = || self.allowed();
        let given = |text: &str| !text.is_empty() && !text.contains('\0');
        match self {
            Kind::Switch => text.parse().map(Value::Switch).map_err(|_| bad()),
            Kind::Word(words) => {
                words.iter().find(|word| **word == text).map(|it| Value::Word(it)).ok_or_else(bad)
            }
            Kind::Span(range) => span(text, range).map(Value::Span).ok_or_else(|| self.with_unit(text, "s")),
            Kind::Count(range) => whole(text, range).map(Value::Count).ok_or_else(bad),
            Kind::Size(range) => size(text, range).map(Value::Size).ok_or_else(|| self.with_unit(text, "B")),
            Kind::Addresses => text.parse().map(Value::Address).map_err(|_| self.with_port(text, "0.0.0.0")),
            Kind::OwnAddress => match text.parse::<SocketAddr>() {
                Ok(address) if admin::may_listen(address) => Ok(Value::Address(address)),
                Ok(_) => Err(bad()),
                Err(_) => Err(self.with_port(text, "127.0.0.1")),
            },
            Kind::File | Kind::Files if given(text) => Ok(Value::Path(folder.join(text))),
            Kind::Networks => match text.parse() {
                Ok(networks) => Ok(Value::Networks(networks, text.to_owned())),
                Err(_) => Err(bad()),
            },
            Kind::Namespace | Kind::Namespaces if is_label(text) => Ok(Value::Text(text.to_owned())),
            Kind::Assignments => assignment(text).ok_or_else(bad),
            Kind::Text if given(text) => Ok(Value::Text(text.to_owned())),
            Kind::File | Kind::Files | Kind::Namespace | Kind::Namespaces | Kind::Text => Err(bad()),
        }
    }

    /// A number without a unit: seconds to some, milliseconds to others.
    fn with_unit(&self, text: &str, unit: &str) -> String {
        let meant = text.parse::<u32>().ok().map(|number| format!("{number}{unit}"));
        // Nobody should be sent from one refusal to the next.
        match meant.filter(|meant| self.parse(meant, Path::new("")).is_ok()) {
            Some(meant) => format!("{}; did you mean {meant}?", self.allowed()),
            None => self.allowed(),
        }
    }

    fn with_port(&self, text: &str, ip: &str) -> String {
        match text.strip_prefix(':').unwrap_or(text).parse::<u16>() {
            Ok(port) => format!("{}; did you mean {ip}:{port}?", self.allowed()),
            Err(_) => self.allowed(),
        }
    }
}

/// `a, b or c`.
fn either(words: &[&str]) -> String {
    match words {
        [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

fn span(text: &str, range: &RangeInclusive<Span>) -> Option<Span> {
    // Zero is zero in any unit, and the only number that people write without one.
    let span = if text == "0" { Span::secs(0) } else { text.parse().ok()? };
    range.contains(&span).then_some(span)
}

/// Digits only: `+5` is a number to Rust.
fn whole(text: &str, range: &RangeInclusive<u64>) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| plain && range.contains(number))
}

fn size(text: &str, range: &RangeInclusive<u64>) -> Option<u64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
    let (_, bytes) = SIZES.iter().find(|(name, _)| *name == unit)?;
    number.checked_mul(*bytes).filter(|bytes| range.contains(bytes))
}

fn assignment(text: &str) -> Option<Value> {
    let (host, namespace) = text.split_once('=')?;
    let host = host.parse().ok()?;
    is_label(namespace).then(|| Value::Assignment(host, namespace.to_owned()))
}

fn is_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(plain)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A size as people write it.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, bytes): &&(&str, u64)| self.0 > 0 && self.0.is_multiple_of(*bytes);
        let (unit, bytes) = SIZES.iter().find(whole).unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

impl Value {
    /// As JSON: numbers, switches and lists as such, the rest as people write it.
    pub fn json(&self) -> serde_json::Value {
        match self {
            Value::Switch(on) => json!(on),
            Value::Count(count) => json!(count),
            Value::List(values) => values.iter().map(Value::json).collect(),
            other => json!(other.to_string()),
        }
    }
}

/// As it can be written in a file or on a command line.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Switch(on) => write!(f, "{on}"),
            Value::Word(word) => f.write_str(word),
            Value::Span(span) => write!(f, "{span}"),
            Value::Count(count) => write!(f, "{count}"),
            Value::Size(bytes) => write!(f, "{}", Bytes(*bytes)),
            Value::Address(address) => write!(f, "{address}"),
            Value::Path(path) => write!(f, "{}", path.display()),
            Value::Networks(_, text) | Value::Text(text) => f.write_str(text),
            Value::Assignment(host, namespace) => write!(f, "{host}={namespace}"),
            Value::List(values) => {
                let values: Vec<String> = values.iter().map(ToString::to_string).collect();
                f.write_str(&values.join(","))
            }
        }
    }
}
