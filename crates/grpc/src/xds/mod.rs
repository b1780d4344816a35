//! Envoy's control plane: endpoints, clusters, routes and listeners over xDS, and the load that Envoys report.

mod access;
pub mod cache;
mod clients;
mod delta;
mod followers;
pub mod load;
mod metrics;
pub mod names;
pub mod publisher;
pub mod resource_type;
pub mod resources;
mod server;
mod sotw;
mod stream;
mod stream_end;
mod subscription;
mod wire;

pub use access::{Access, ClientIdentity};
pub use clients::ConnectedClient;
pub use followers::EnvoyFollowers;
pub use metrics::XdsMetrics;
pub use server::{XdsLimits, XdsParts, XdsServer, XdsSettings};
