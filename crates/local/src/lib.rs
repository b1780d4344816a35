//! The local engine: runs the pods of `rouse up` as processes on this machine, and leaves none behind.
//!
//! [`engine`] scales each app with its load and publishes its pods in the registry. Each pod is a [`process::Process`] under
//! a guardian of its own ([`guardian`]), which outlives `rouse up` just long enough to kill every descendant of the pod. Made
//! for Linux; on other systems the process group of a pod is killed, but not descendants that have left it.

pub mod address;
pub mod command;
pub mod engine;
pub mod guardian;
mod guardian_protocol;
mod listening;
pub mod output;
pub mod process;
mod process_tree;
pub mod restart_backoff;
