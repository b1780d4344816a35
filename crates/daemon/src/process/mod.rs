//! What long-running commands share: signals, readiness, console output, limits of files and memory, and the drain.

pub mod capacity;
pub mod console;
pub mod drain;
mod memory;
pub mod ready;
pub mod signals;
pub mod style;

use std::time::SystemTime;

/// The time of day.
#[expect(clippy::disallowed_methods, reason = "this is where the time of day comes from")]
pub fn time_of_day() -> SystemTime {
    SystemTime::now()
}
