//! The report channel: gateways and xds replicas tell every controller replica their load (`rouse.report.v1`).
//!
//! `client` is the reporter's side, `server` is the controller's. `intake` has the rules of a stream, and `wire` translates between
//! messages and the types of core.

pub mod client;
pub(crate) mod intake;
pub mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use intake::Greeting;
pub use wire::ReporterRole;
