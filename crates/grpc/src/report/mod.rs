//! The report channel: gateways and xds replicas tell every controller replica their load (`rouse.report.v1`).
//!
//! `client` is the reporter's side, `server` is the controller's. `stream_protocol` has the rules of a stream, and `wire` translates between
//! messages and the types of core.

pub mod client;
pub mod server;
pub(crate) mod stream_protocol;
#[cfg(test)]
mod tests;
mod wire;

pub use stream_protocol::ReporterHello;
pub use wire::ReporterRole;
