//! The rules of Rouse, without I/O: pod state, load balancing, held requests, autoscaling and `EndpointSlice` packing.
//!
//! Nothing here opens a socket, reads a clock, draws a random number or knows a Kubernetes type. [`merge`] combines
//! three sources into one immutable [`snapshot`] per service. A request waits for a slot and takes it in one operation
//! ([`hold`], [`pick`], [`service`]).

pub mod budget;
pub mod cold_start;
pub mod endpoint;
pub mod engine;
pub mod envoy;
pub mod hold;
pub mod host;
pub mod lease;
pub mod load_meter;
pub mod merge;
pub mod pick;
pub mod probe;
pub mod random;
pub mod registry;
pub mod routing_mode;
pub mod scale;
pub mod service;
pub mod service_changes;
pub mod shutdown;
pub mod slices;
pub mod snapshot;
pub mod start_failure;
mod sync;
pub mod time;
