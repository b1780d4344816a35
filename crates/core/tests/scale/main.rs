//! The autoscaler: its decisions, schedules, and idle policies that learn.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic, also in its helpers")]

mod autoscaler;
mod driver;
mod idle;
mod idle_properties;
mod schedule;
