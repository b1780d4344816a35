//! What several edges need of the network: probes of pods, listeners, TLS, and the runtime's clock.

pub mod clock;
pub mod limits;
pub mod listen;
pub mod pace;
pub mod probe;
pub mod prober;
pub mod tls;
