//! A running gateway for tests of the data plane; the test itself plays pods and clients, through sockets.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "helpers of tests, which may panic"
)]

pub mod http2_peers;
pub mod rig;
pub mod wire;
