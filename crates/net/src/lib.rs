//! Shared network code: authentication of pods, discovery of peers, readiness probes, listening sockets, TLS, the tokio clock and a
//! random seed.

pub mod auth;
pub mod clock;
mod file_watch;
pub mod listen;
pub mod peers;
pub mod probe;
pub mod probe_limiter;
pub mod probe_schedule;
pub mod prober;
pub mod random;
pub mod tls;
