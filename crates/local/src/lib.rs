//! Processes on this machine as pods: started, watched, stopped, and never left behind.
//!
//! [`engine`] keeps as many pods of each app as its load asks for, and tells the registry of them. Each pod is a
//! [`process::Process`] under a guardian of its own ([`guardian`]), which outlives `rouse up` just long enough to end every
//! descendant of the pod. Made for Linux; elsewhere a pod's process group is ended, but not the descendants that left
//! it.

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
