//! The data plane against pods that a test holds in its hand.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic, also in its helpers")]

mod bodies;
mod h2kit;
mod holding;
mod leaving;
mod retries;
mod review_drain;
mod review_h1;
mod review_h2;
mod rig;
mod smoke;
