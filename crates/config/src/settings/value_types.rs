//! The value types of settings: each parses a text, prints the value, and describes what is allowed.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde_json::json;

use crate::duration::HumanDuration;
use crate::size::{self, Bytes};

/// One value of a setting: how it is read, shown and described.
pub trait SettingKind: Sync {
    /// The type of the value.
    type Value: Clone + Send + Sync + 'static;
    /// The placeholder of the value in help texts.
    fn placeholder(&self) -> &'static str;
    /// The allowed values, for errors.
    fn allowed(&self) -> String;
    /// Parses `text`; the error is the text of what is allowed. Paths are relative to `folder`.
    fn parse(&self, text: &str, folder: &Path) -> Result<Self::Value, String>;
    /// Prints the value as it can be written in a file or on a command line.
    fn show(&self, value: &Self::Value) -> String;

    /// The value as JSON: numbers and booleans as such, all others as text.
    fn json(&self, value: &Self::Value) -> serde_json::Value {
        json!(self.show(value))
    }

    /// The file or folder that it names.
    fn path(&self, _value: &Self::Value) -> Option<PathBuf> {
        None
    }

    /// True if a list in a file means the same as its elements with commas between them.
    fn is_joined(&self) -> bool {
        false
    }

    /// True if its flag may come without a value, which means `true`.
    fn is_switch(&self) -> bool {
        false
    }
}

/// `true` or `false`.
#[derive(Debug, Clone, Copy)]
pub struct Switch;

impl SettingKind for Switch {
    type Value = bool;

    fn placeholder(&self) -> &'static str {
        "BOOL"
    }

    fn allowed(&self) -> String {
        "true or false".to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<bool, String> {
        text.parse().map_err(|_| self.allowed())
    }

    fn show(&self, on: &bool) -> String {
        on.to_string()
    }

    fn json(&self, on: &bool) -> serde_json::Value {
        json!(on)
    }

    fn is_switch(&self) -> bool {
        true
    }
}

/// One of a few words, each with its value.
#[derive(Debug, Clone, Copy)]
pub struct Choice<E: 'static>(pub &'static [(&'static str, E)]);

impl<E: Copy + PartialEq + Send + Sync> SettingKind for Choice<E> {
    type Value = E;

    fn placeholder(&self) -> &'static str {
        "WORD"
    }

    fn allowed(&self) -> String {
        let words: Vec<&str> = self.0.iter().map(|(word, _)| *word).collect();
        match &words[..] {
            [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => words.concat(),
        }
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<E, String> {
        let found = self.0.iter().find(|(word, _)| *word == text);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| self.allowed())
    }

    fn show(&self, value: &E) -> String {
        let found = self.0.iter().find(|(_, meaning)| meaning == value);
        found.map_or_else(String::new, |(word, _)| (*word).to_owned())
    }
}

/// A duration in a range.
#[derive(Debug, Clone, Copy)]
pub struct DurationRange {
    /// The shortest.
    pub least: Duration,
    /// The longest.
    pub most: Duration,
}

impl DurationRange {
    fn read(&self, text: &str) -> Option<Duration> {
        // Zero needs no unit.
        let duration = if text == "0" { Duration::ZERO } else { text.parse::<HumanDuration>().ok()?.get() };
        (self.least..=self.most).contains(&duration).then_some(duration)
    }
}

impl SettingKind for DurationRange {
    type Value = Duration;

    fn placeholder(&self) -> &'static str {
        "DURATION"
    }

    fn allowed(&self) -> String {
        let (least, most) = (HumanDuration::from(self.least), HumanDuration::from(self.most));
        format!("a duration from {least} to {most}, like 500ms, 30s, 5m or 1h")
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<Duration, String> {
        let with_unit = || text.parse::<u32>().ok().map(|number| format!("{number}s"));
        self.read(text).ok_or_else(|| {
            did_you_mean(self.allowed(), with_unit().filter(|meant| self.read(meant).is_some()))
        })
    }

    fn show(&self, value: &Duration) -> String {
        HumanDuration::from(*value).to_string()
    }
}

/// A whole number in a range.
#[derive(Debug, Clone, Copy)]
pub struct Whole<N> {
    /// The smallest.
    pub least: N,
    /// The largest.
    pub most: N,
}

impl<N> SettingKind for Whole<N>
where
    N: Copy + Display + FromStr + PartialOrd + Send + Sync + serde::Serialize + 'static,
{
    type Value = N;

    fn placeholder(&self) -> &'static str {
        "COUNT"
    }

    fn allowed(&self) -> String {
        format!("a whole number from {} to {}", self.least, self.most)
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<N, String> {
        // Digits only: Rust would also parse `+5`.
        let plain = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|number| plain && (self.least..=self.most).contains(number));
        number.ok_or_else(|| self.allowed())
    }

    fn show(&self, value: &N) -> String {
        value.to_string()
    }

    fn json(&self, value: &N) -> serde_json::Value {
        json!(value)
    }
}

/// A number of bytes in a range.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// The smallest.
    pub least: u64,
    /// The largest.
    pub most: u64,
}

impl SettingKind for Size {
    type Value = usize;

    fn placeholder(&self) -> &'static str {
        "SIZE"
    }

    fn allowed(&self) -> String {
        size::allowed(&(self.least..=self.most))
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<usize, String> {
        let range = self.least..=self.most;
        let bytes = size::parse(text, &range).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.ok_or_else(|| did_you_mean(self.allowed(), size::with_unit(text, &range)))
    }

    fn show(&self, bytes: &usize) -> String {
        Bytes(u64::try_from(*bytes).unwrap_or(u64::MAX)).to_string()
    }
}

/// An address to listen on.
#[derive(Debug, Clone, Copy)]
pub struct Address;

impl SettingKind for Address {
    type Value = SocketAddr;

    fn placeholder(&self) -> &'static str {
        "ADDRESS"
    }

    fn allowed(&self) -> String {
        "an IP address and a port, like 0.0.0.0:8080 or [::]:8080".to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<SocketAddr, String> {
        text.parse().map_err(|_| with_port(self.allowed(), text, "0.0.0.0"))
    }

    fn show(&self, address: &SocketAddr) -> String {
        address.to_string()
    }
}

/// An address to listen on that is not all addresses of the machine: for a listener without authentication.
#[derive(Debug, Clone, Copy)]
pub struct PrivateAddress;

impl PrivateAddress {
    /// The allowed values, for errors.
    pub const ALLOWED: &str = "a loopback address or the pod's own, and a port, like 127.0.0.1:9090: the admin API has no authentication";

    /// True if the admin API may listen there.
    pub fn is_allowed(address: SocketAddr) -> bool {
        !address.ip().to_canonical().is_unspecified()
    }
}

impl SettingKind for PrivateAddress {
    type Value = SocketAddr;

    fn placeholder(&self) -> &'static str {
        "ADDRESS"
    }

    fn allowed(&self) -> String {
        Self::ALLOWED.to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<SocketAddr, String> {
        match text.parse() {
            Ok(address) if Self::is_allowed(address) => Ok(address),
            Ok(_) => Err(self.allowed()),
            Err(_) => Err(with_port(self.allowed(), text, "127.0.0.1")),
        }
    }

    fn show(&self, address: &SocketAddr) -> String {
        address.to_string()
    }
}

/// The path of a file or folder.
#[derive(Debug, Clone, Copy)]
pub struct FilePath {
    /// The placeholder in help texts.
    pub placeholder: &'static str,
}

impl SettingKind for FilePath {
    type Value = PathBuf;

    fn placeholder(&self) -> &'static str {
        self.placeholder
    }

    fn allowed(&self) -> String {
        "a path that is not empty".to_owned()
    }

    fn parse(&self, text: &str, folder: &Path) -> Result<PathBuf, String> {
        if is_text(text) { Ok(folder.join(text)) } else { Err(self.allowed()) }
    }

    fn show(&self, path: &PathBuf) -> String {
        path.display().to_string()
    }

    fn path(&self, path: &PathBuf) -> Option<PathBuf> {
        Some(path.clone())
    }
}

/// The name of a Kubernetes namespace.
#[derive(Debug, Clone, Copy)]
pub struct Label;

impl Label {
    /// True if `text` is a DNS label, as names of namespaces are.
    pub fn is_allowed(text: &str) -> bool {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&text.len())
            && text.bytes().all(plain)
            && !text.starts_with('-')
            && !text.ends_with('-')
    }
}

impl SettingKind for Label {
    type Value = String;

    fn placeholder(&self) -> &'static str {
        "NAME"
    }

    fn allowed(&self) -> String {
        "a namespace's name: 1 to 63 lower-case letters, digits and hyphens, with no hyphen at the start or the end"
            .to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<String, String> {
        if Self::is_allowed(text) { Ok(text.to_owned()) } else { Err(self.allowed()) }
    }

    fn show(&self, text: &String) -> String {
        text.clone()
    }
}

/// Any text.
#[derive(Debug, Clone, Copy)]
pub struct Text;

impl SettingKind for Text {
    type Value = String;

    fn placeholder(&self) -> &'static str {
        "NAME"
    }

    fn allowed(&self) -> String {
        "text that is not empty".to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<String, String> {
        if is_text(text) { Ok(text.to_owned()) } else { Err(self.allowed()) }
    }

    fn show(&self, text: &String) -> String {
        text.clone()
    }
}

fn is_text(text: &str) -> bool {
    !text.is_empty() && !text.contains('\0')
}

/// Adds a suggestion if `text` is only a port, which is a common mistake.
fn with_port(allowed: String, text: &str, ip: &str) -> String {
    let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>();
    did_you_mean(allowed, port.ok().map(|port| format!("{ip}:{port}")))
}

/// Adds a suggestion, which must be a value that is allowed.
fn did_you_mean(allowed: String, meant: Option<String>) -> String {
    match meant {
        Some(meant) => format!("{allowed}; did you mean {meant}?"),
        None => allowed,
    }
}
