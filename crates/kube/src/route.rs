//! KEDA's `InterceptorRoute`s and `HTTPScaledObject`s → plain routes, all of it without a cluster.
//!
//! [`spec`] reads one object and says everything that is wrong with it. `book` keeps the last good version of
//! each. [`hosts`] decides whose host is whose. [`plan`] puts these together with Services and `ConfigMap`s into
//! what a data plane can use, and [`status`] says of each object what its owner should know.

pub(crate) mod book;
mod field;
pub mod hosts;
pub mod plan;
pub mod spec;
pub mod status;
