//! The settings, help and documentation of `rouse sidecar`, `rouse controller` and `rouse xds`. `ROUSE_WRITE_DOCS=1` writes their tables again.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is how a test fails")]

mod controller;
mod sidecar;
mod tables;
mod xds;
