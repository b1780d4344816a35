//! Kubernetes, seen from the core.
//!
//! [`objects`] reads the few fields of Kubernetes objects that Rouse uses and turns them into the core's own
//! types, and back. Nothing here talks to a cluster yet.

pub mod objects;
