//! The heart of Rouse: what is true of a pod, and the wait for one.
//!
//! Nothing here opens a socket, reads a clock, draws a random number or knows a Kubernetes type. Facts come
//! in from three sources ([`merge`]), become one immutable [`snapshot`] per service, and requests wait for
//! and take a slot in one step ([`hold`], [`pick`]).

pub mod budget;
pub mod drain;
pub mod endpoint;
pub mod engine;
pub mod health;
pub mod hold;
pub mod host;
pub mod merge;
pub mod pick;
pub mod probe;
pub mod registry;
pub mod scale;
pub mod service;
pub mod slices;
pub mod slot;
pub mod snapshot;
pub mod start;
mod sync;
pub mod time;
pub mod timeline;
