//! Pods of the local engine as real processes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic, also in its helpers")]

mod harness;
mod orphans;
mod process;
