//! Envoy's control plane: endpoints, clusters, routes and listeners over xDS, and the load that Envoys report.
//!
//! [`XdsServer`] serves what is in a [`ResourceCache`](cache::ResourceCache): incremental (delta) ADS for all types,
//! and both protocols for endpoints alone. The composing crate publishes encoded resources, and may do so before the server runs.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use bytes::Bytes;
//! # use rouse_core::time::Clock;
//! # use rouse_grpc::GrpcTransport;
//! # use rouse_grpc::xds::{cache::{ResourceCache, ResourceChange}, resource_type::ResourceType, *};
//! # use rouse_net::tls::ServerTls;
//! # use tokio_util::sync::CancellationToken;
//! # async fn run(
//! #     clock: Arc<dyn Clock>, listener: tokio::net::TcpListener, tls: Arc<ServerTls>, stop: CancellationToken, encoded: Bytes,
//! #     metrics: &mut prometheus_client::registry::Registry,
//! # ) {
//! let cache = Arc::<ResourceCache>::default();
//! let parts = XdsParts {
//!     cache: Arc::clone(&cache),
//!     // Whose certificates may connect. The TLS settings of the listener say which authority signs them.
//!     access: Access::Sans(vec!["spiffe://cluster.local/ns/edge/sa/envoy".to_owned()]),
//!     clock,
//!     metrics: XdsMetrics::new(metrics),
//! };
//! let server = XdsServer::new(XdsSettings::default(), parts, stop);
//!
//! // What belongs together is one update: no Envoy gets a route before the cluster that it names.
//! let (kind, name) = (ResourceType::Endpoints, "shop/cart:http");
//! cache.update([ResourceChange { kind, name: name.into(), encoded: Some(encoded) }]);
//! let version = cache.version(kind, name);
//!
//! // True when every connected Envoy that is subscribed to the endpoints has accepted them.
//! let mut changes = server.watch_clients();
//! let accepted = async { changes.wait_for(|_| server.acknowledged_endpoints(name, version)).await.is_ok() };
//!
//! // Ends when `stop` is cancelled: Envoys keep what they have, and connect again.
//! tokio::join!(server.serve(listener, GrpcTransport::Tls(tls)), accepted);
//! # }
//! ```
//!
//! # What a stream gets, and when
//!
//! - A resource is sent when its content changes: its version is the hash of it. While a response of a type is not answered, changes of
//!   this type wait, and then go together. A response has at most [`XdsLimits::response_bytes`].
//! - A response that is rejected is logged and counted. What it had is not sent again until it changes, or the client subscribes again.
//! - The order is clusters, endpoints, listeners, routes. Listeners and routes wait until the client has answered for the clusters before
//!   them, accepted or not. Clusters are removed after the routes that named them, and endpoints after their clusters. After a reconnect,
//!   clusters stay until the client has asked for listeners and routes, or for 5 s.
//! - A cluster that is sent is followed by its endpoints, even if these have not changed: Envoy waits for them.
//! - A type that is not served, such as secrets, is answered once for each request: what was asked for does not exist. An Envoy
//!   that asks for one does not wait until its timeout, and the stream goes on.

mod access;
pub mod cache;
mod clients;
mod delta;
mod endpoint_acks;
pub(crate) mod fuzzing;
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
#[cfg(test)]
mod tests;
mod wire;

pub use access::{Access, ClientIdentity};
pub use clients::ConnectedClient;
pub use endpoint_acks::EndpointAcks;
pub use metrics::XdsMetrics;
pub use server::{XdsLimits, XdsParts, XdsServer, XdsSettings};
