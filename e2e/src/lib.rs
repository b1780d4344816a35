//! Shared code of the end-to-end tests: fixtures that run the product, clients, and the four ways in which a check
//! reaches an app: directly, through a gateway whose app is at zero, through one whose app is warm, and through a sidecar as well.

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
pub mod controller;
mod daemon;
pub mod gateway;
pub mod metrics;
pub mod output;
pub mod pattern;
pub mod pod;
pub mod proc;
pub mod relay;
pub mod rouse;
pub mod runtime;
pub mod sidecar;
pub mod target;
pub mod wait;

use std::path::PathBuf;

/// Any error; a test only prints it.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The programs under test.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The product.
    pub rouse: PathBuf,
    /// The test app.
    pub app: PathBuf,
}

/// The programs that cargo built. A macro, because cargo gives their paths only to test targets.
#[macro_export]
macro_rules! programs {
    () => {
        $crate::Programs {
            rouse: env!("CARGO_BIN_EXE_rouse-under-test").into(),
            app: env!("CARGO_BIN_EXE_rouse-test-app").into(),
        }
    };
}
