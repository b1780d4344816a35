//! Kubernetes, seen from the core.
//!
//! [`objects`] reads the few fields of Kubernetes objects that Rouse uses and turns them into the core's own
//! types, and back. [`route`] does the same for KEDA's routes. Both work without a cluster.
//!
//! [`cluster`] follows a cluster: it feeds the registry with Services and `EndpointSlice`s, publishes routes, knows
//! how pods may be probed, tells the owners of routes what is the matter with them, and is the engine that wakes
//! workloads.

pub mod objects;
pub mod permissions;

#[cfg(feature = "cluster")]
mod api;
#[cfg(feature = "cluster")]
pub mod cluster;
#[cfg(feature = "cluster")]
pub mod connect;
#[cfg(feature = "cluster")]
mod events;
#[cfg(feature = "cluster")]
mod feed;
#[cfg(feature = "cluster")]
pub mod pods;
#[cfg(feature = "cluster")]
pub mod route;
#[cfg(feature = "cluster")]
pub mod scale;
#[cfg(feature = "cluster")]
pub mod service;
#[cfg(feature = "cluster")]
pub mod survey;
#[cfg(feature = "cluster")]
pub mod watch;
