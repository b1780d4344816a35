//! The types of single values in `rouse.yaml`: the name, port and protocol of an app.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use rouse_core::endpoint::ServiceId;

/// A text that is not allowed as one of these values.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not allowed, expected {allowed}")]
pub struct BadWord {
    text: String,
    allowed: &'static str,
}

impl BadWord {
    fn new(text: &str, allowed: &'static str) -> Self {
        Self { text: text.to_owned(), allowed }
    }
}

/// An app's name, which is a DNS label: it becomes a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AppName(ServiceId);

impl AppName {
    pub(super) const ALLOWED: &str =
        "1 to 63 lower-case letters, digits and hyphens, with no hyphen at the start or the end";

    /// The name.
    pub fn as_str(&self) -> &str {
        self.0.name()
    }

    /// The app's service: `local/<name>`.
    pub fn service(&self) -> &ServiceId {
        &self.0
    }
}

impl FromStr for AppName {
    type Err = BadWord;

    fn from_str(text: &str) -> Result<Self, BadWord> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let label = text.len() <= 63 && text.bytes().all(plain);
        if !label || text.starts_with('-') || text.ends_with('-') {
            return Err(BadWord::new(text, Self::ALLOWED));
        }
        ServiceId::new("local", text).map(Self).map_err(|_| BadWord::new(text, Self::ALLOWED))
    }
}

impl fmt::Display for AppName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which port a pod gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppPort {
    /// A free one on 127.0.0.1.
    Auto,
    /// This one, on a loopback address of the pod's own.
    Fixed(NonZeroU16),
}

impl AppPort {
    pub(super) const ALLOWED: &str = "auto, or a number from 1 to 65535";
}

impl FromStr for AppPort {
    type Err = BadWord;

    fn from_str(text: &str) -> Result<Self, BadWord> {
        match text {
            "auto" => Ok(AppPort::Auto),
            number => number.parse().map(AppPort::Fixed).map_err(|_| BadWord::new(text, Self::ALLOWED)),
        }
    }
}

/// The protocol of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppTransport {
    /// HTTP/1.1.
    Http,
    /// HTTP/2 without TLS, with prior knowledge.
    H2c,
}

impl AppTransport {
    pub(super) const ALLOWED: &str = "http or h2c";
}

impl FromStr for AppTransport {
    type Err = BadWord;

    fn from_str(text: &str) -> Result<Self, BadWord> {
        match text {
            "http" => Ok(AppTransport::Http),
            "h2c" => Ok(AppTransport::H2c),
            _ => Err(BadWord::new(text, Self::ALLOWED)),
        }
    }
}
