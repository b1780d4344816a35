//! Whole-system tests: what they share. A fixture that runs the product, clients that say exactly what they mean,
//! and the ways by which one check reaches an app: straight, through a gateway that is cold, through one that is warm.

#![expect(
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::print_stderr,
    reason = "a test harness: a panic is how it reports, and what it prints is shown with the failure"
)]

pub mod admin;
pub mod body;
pub mod client;
pub mod command;
pub mod config;
pub mod gateway;
pub mod metrics;
pub mod output;
pub mod pattern;
pub mod pod;
pub mod proc;
pub mod rouse;
pub mod target;
pub mod wait;

use std::path::PathBuf;

/// What can go wrong on the way; a test only prints it.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The programs under test.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The product.
    pub rouse: PathBuf,
    /// What it runs.
    pub app: PathBuf,
}

/// The programs, as cargo built them for the test that asks: only tests are told where they are.
#[macro_export]
macro_rules! programs {
    () => {
        $crate::Programs {
            rouse: env!("CARGO_BIN_EXE_rouse-under-test").into(),
            app: env!("CARGO_BIN_EXE_rouse-test-app").into(),
        }
    };
}
