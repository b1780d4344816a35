//! The local engine with real processes; requests are slots of the core.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic, also in its helpers"
)]

mod changes;
mod harness;
mod scale;
mod sidecars;
mod trouble;
