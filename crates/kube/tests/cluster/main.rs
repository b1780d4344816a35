//! The engine against an API server that a test holds in its hand. Time is paused: nothing waits for a clock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod bodies;
mod conditions;
mod connect;
mod follow;
mod forged;
mod histories;
mod ownership;
mod permissions;
mod rig;
mod routes;
mod tls;
mod wake;
