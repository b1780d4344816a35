//! The HTTP data plane: listen → downstream → request → routing and upstream.
//!
//! [`listen::Workers`] has one thread and one runtime per core; a request never leaves its thread. The threads share the
//! [`listen::Gateway`]: the route table, which is swapped whole, the metrics and the budgets.

pub mod budget;
mod client;
pub mod downstream;
pub mod error;
pub mod listen;
pub mod message;
pub mod request;
pub mod routing;
mod runtime;
pub mod telemetry;
pub mod upstream;
