//! Routes without a cluster: objects → specs, the owners of hosts, and the status.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod claims;
mod hosts;
mod spec;
mod status;
mod tls;

/// Whether two patterns overlap, in the plainest way: one of `hosts` matches both.
fn overlap(hosts: &[&str], one: &str, other: &str) -> bool {
    let matches = |pattern: &str, host: &str| match pattern.strip_prefix('*') {
        Some(suffix) if !suffix.is_empty() => host.ends_with(suffix),
        _ => pattern == host,
    };
    one == other || hosts.iter().any(|host| matches(one, host) && matches(other, host))
}
