//! Shared network code: authentication of pods, discovery of peers, readiness probes, listening sockets and limits on their
//! connections, TLS, the tokio clock and a random seed.

pub mod auth;
pub mod clock;
pub mod fair_limiter;
mod file_watch;
pub mod listen;
pub mod peers;
pub mod probe;
pub mod probe_limiter;
pub mod probe_schedule;
pub mod prober;
pub mod random;
pub mod tls;
