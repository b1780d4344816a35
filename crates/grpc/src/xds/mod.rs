//! Envoy's control plane: endpoints, clusters, routes and listeners over xDS, and the load that Envoys report.

mod access;
pub mod cache;
mod clients;
mod delta;
pub(crate) mod fuzzing;
mod metrics;
pub mod names;
pub mod resource_type;
pub mod resources;
mod server;
mod sotw;
mod stream;
mod stream_end;
mod subscription;
#[cfg(test)]
mod tests;
mod wire;

pub use access::{Access, ClientIdentity};
pub use clients::ConnectedClient;
pub use metrics::XdsMetrics;
pub use server::{XdsLimits, XdsParts, XdsServer, XdsSettings};
