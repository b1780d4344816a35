//! The registration server: what it accepts, what it refuses, and that nothing changes when it refuses.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic, also in its helpers"
)]

mod connections;
mod credentials;
mod decisions;
mod harness;
mod logs;
mod stress;
