//! The Kubernetes engine: follows a cluster, compiles its routes, and wakes its workloads.
//!
//! The modules, from the top down; each imports only modules below it:
//!
//! - [`cluster`] starts the modules and implements the core's engine. [`survey`] inspects a cluster for `rouse check`.
//! - [`endpoints`] feeds `EndpointSlice`s and pods into the registry, [`routes`] compiles route objects into plans and
//!   writes their status, [`wake`] finds and scales workloads, [`slices`] writes `EndpointSlice`s.
//! - [`gateway_addresses`] follows where the gateways are.
//! - [`events`] has the events for the operator's log.
//! - [`tasks`] ends a component when one of its tasks ends.
//! - [`objects`] has the Kubernetes objects, trimmed to the fields that Rouse uses, and what they mean.
//! - [`client`] connects to the API server, lists and watches.
//!
//! Without the feature `cluster` only [`objects`] and the table of permissions are there: `rouse explain` needs no more.

pub mod client;
pub mod objects;

#[cfg(feature = "cluster")]
pub mod autoscale;
#[cfg(feature = "cluster")]
pub mod cluster;
#[cfg(feature = "cluster")]
pub mod endpoints;
#[cfg(feature = "cluster")]
pub mod events;
#[cfg(feature = "cluster")]
pub mod gateway_addresses;
#[cfg(feature = "cluster")]
pub mod lease;
#[cfg(feature = "cluster")]
pub mod routes;
#[cfg(feature = "cluster")]
pub mod slices;
#[cfg(feature = "cluster")]
pub mod survey;
#[cfg(feature = "cluster")]
pub mod tasks;
#[cfg(feature = "cluster")]
pub mod wake;
