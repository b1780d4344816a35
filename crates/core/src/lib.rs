//! The rules of Rouse: the state of pods, and how requests wait for and get a slot on one.
//!
//! Nothing here opens a socket, reads a clock, draws a random number or knows a Kubernetes type. Facts come
//! in from three sources ([`merge`]), become one immutable [`snapshot`] per service, and requests wait for
//! and take a slot in one step ([`hold`], [`pick`], [`service`]).

pub mod budget;
pub mod drain;
pub mod endpoint;
pub mod engine;
pub mod hold;
pub mod host;
pub mod merge;
pub mod pick;
pub mod probe;
pub mod random;
pub mod registry;
pub mod routing;
pub mod scale;
pub mod service;
pub mod slices;
pub mod snapshot;
pub mod start;
mod sync;
pub mod time;
pub mod timeline;
