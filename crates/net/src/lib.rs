//! Shared network code: readiness probes, listening sockets, TLS, the tokio clock and a random seed.

pub mod clock;
pub mod listen;
pub mod probe;
pub mod probe_limiter;
pub mod probe_schedule;
pub mod prober;
pub mod random;
pub mod tls;
