//! What several edges need of the network: probes of pods, listeners, and the runtime's clock.

pub mod clock;
pub mod limits;
pub mod listen;
pub mod pace;
pub mod probe;
pub mod prober;
