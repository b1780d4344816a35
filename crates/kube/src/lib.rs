//! Kubernetes, as Rouse sees it: the engine that follows a cluster and wakes workloads.
//!
//! The rooms, from the top down; each imports only rooms below it:
//!
//! - [`cluster`] composes the rooms and is the core's engine. [`survey`] stands beside it: what `rouse check` asks.
//! - [`endpoints`] brings `EndpointSlice`s and pods into the registry, [`routes`] compiles route objects into plans and
//!   writes their status, [`wake`] finds and scales workloads.
//! - [`events`] has what an operator may want to read in a log.
//! - [`objects`] has the Kubernetes objects, trimmed to the fields that Rouse uses, and what they mean.
//! - [`client`] connects to the API server, lists and watches.
//!
//! Without the feature `cluster` only [`objects`] and the table of permissions are there: `rouse explain` needs no more.

pub mod client;
pub mod objects;

#[cfg(feature = "cluster")]
pub mod cluster;
#[cfg(feature = "cluster")]
pub mod endpoints;
#[cfg(feature = "cluster")]
pub mod events;
#[cfg(feature = "cluster")]
pub mod routes;
#[cfg(feature = "cluster")]
pub mod survey;
#[cfg(feature = "cluster")]
pub mod wake;
