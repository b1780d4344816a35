//! The report channel over TLS: scripted reporters against the real server, and real gateways against real controllers.
#![allow(clippy::unwrap_used, reason = "a test")]

mod authentication;
#[path = "../support/channel.rs"]
mod channel;
mod controllers;
mod edges;
mod envoys;
mod harness;
mod network;
mod parking;
mod random_walk;
mod sockets;
mod streams;
mod versions;
mod zero;

/// The messages as another implementation would read them.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
mod proto {
    include!("../../proto/generated/rouse.report.v1.rs");
}
