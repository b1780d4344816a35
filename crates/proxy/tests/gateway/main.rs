//! The data plane against pods that a test holds in its hand.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic, also in its helpers")]

mod bodies;
mod holding;
mod leaving;
mod retries;
mod rig;
mod smoke;
