//! The client against real registration servers, over a network in memory that tests script, and over sockets.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic, also in its helpers"
)]

mod credentials;
mod failures;
mod gateways;
mod harness;
mod hostile;
mod logs;
mod restarts;
mod sockets;
