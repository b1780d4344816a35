//! Routes without a cluster: objects → specs, whose host is whose, and what owners are told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod claims;
mod hosts;
mod spec;
mod status;
mod tls;
