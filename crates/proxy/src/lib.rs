//! The HTTP data plane: serve → route → hold → forward.
//!
//! [`serve::Workers`] has one thread and one runtime per core; nothing of a request ever leaves its thread. What the
//! threads share is the [`gateway::Gateway`]: the route table, swapped whole, and the books.

pub mod access;
mod answer;
mod body;
mod buffers;
pub mod cluster_ip;
mod connection;
mod crowd;
mod deadline;
pub mod error;
mod forward;
pub mod gateway;
pub mod guard;
mod guarded;
pub mod headers;
pub mod metrics;
pub mod podless;
mod pool;
mod request;
pub mod route;
pub mod serve;
mod signal;
mod socket;
mod tunnel;
mod worker;
