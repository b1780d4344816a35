//! The `EndpointSlice` controller against the scripted API server of testkit. Time is paused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod content;
mod faults;
mod history;
mod leadership;
mod lifecycle;
mod metrics;
mod permissions;
mod rig;
