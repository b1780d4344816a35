//! The Kubernetes engine against the scripted API server of testkit. Time is paused.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod annotated;
mod autoscale;
mod bodies;
mod conditions;
mod connect;
mod election;
mod follow;
mod forged;
mod gateway_addresses;
mod histories;
mod ownership;
mod permissions;
mod propagation;
mod push;
mod rig;
mod routes;
mod tls;
mod wake;
