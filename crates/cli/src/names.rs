//! Parsers of values that several commands take: names of objects, images, the IP family of pods.

#![allow(clippy::doc_markdown, reason = "doc comments are help texts here, and backticks would be printed")]

use clap::ValueEnum;

/// The image of Rouse that commands use if the operator names none.
pub(crate) const IMAGE: &str = concat!("localhost/rouse:", env!("CARGO_PKG_VERSION"));

/// The IP family of the pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum IpFamily {
    /// 10.0.0.7
    #[default]
    Ipv4,
    /// fd00::7; also for dual-stack clusters whose first family it is
    Ipv6,
}

/// A namespace's name.
pub(crate) fn label(text: &str) -> Result<String, String> {
    if is_label(text) {
        return Ok(text.to_owned());
    }
    Err("expected 1 to 63 lower-case letters, digits and hyphens, with no hyphen at the start or the end"
        .to_owned())
}

fn is_label(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with('-') && !text.ends_with('-')
}

/// The name of an object, like a Secret.
pub(crate) fn object_name(text: &str) -> Result<String, String> {
    if text.len() <= 253 && text.split('.').all(is_label) {
        return Ok(text.to_owned());
    }
    Err("expected an object's name: lower-case letters, digits, hyphens and dots".to_owned())
}

/// Parses an image. A tag or digest is required: without one the running version is not known later.
pub(crate) fn image(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/@".contains(&byte);
    let name = text.rsplit('/').next().unwrap_or_default();
    let tagged = name.split_once(['@', ':']).is_some_and(|(name, tag)| !name.is_empty() && !tag.is_empty());
    let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts && tagged && text.bytes().all(plain) && !text.contains("//") {
        return Ok(text.to_owned());
    }
    Err("expected an image with a tag or a digest, like registry.example.com/rouse:0.1.0".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_says_which_one_it_is() {
        let digest = "registry.example.com:5000/team/rouse@sha256:0123456789abcdef";
        for good in ["rouse:1", "localhost/rouse:0.1.0", "registry.example.com:5000/rouse:v1", digest] {
            assert_eq!(image(good).as_deref(), Ok(good));
        }
        let bad = ["", "rouse", "registry.example.com:5000/rouse", "rouse:", ":1", "a b:1", "a:1\n", "/a:1"];
        for bad in bad.into_iter().chain(["-a:1", "a//b:1", "rouse:\"1\""]) {
            assert!(image(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_are_those_that_kubernetes_takes() {
        let longest = "a".repeat(63);
        for good in ["a", "rouse-system", "7", &*longest] {
            assert!(label(good).is_ok() && object_name(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a b", "a/b", &*"a".repeat(64)] {
            assert!(label(bad).is_err() && object_name(bad).is_err(), "{bad}");
        }
        assert!(label("a.b").is_err() && object_name("a.b").is_ok() && object_name("a..b").is_err());
    }
}
