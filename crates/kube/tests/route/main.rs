//! Routes without a cluster: objects → specs, the owners of hosts, and the status.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod claims;
mod hosts;
mod spec;
mod status;
mod tls;
