//! KEDA's `InterceptorRoute`s and `HTTPScaledObject`s → plain routes, all of it without a cluster.
//!
//! [`spec`] reads one object and says everything that is wrong with it. `book` keeps the last good version of
//! each. [`claims`] decides which namespace owns which host, by the times that [`record`] keeps in the routes' status.
//! [`plan`] puts these together with Services and `ConfigMap`s into what a data plane can use, and [`status`] says of each object what its owner should know.

pub(crate) mod book;
pub mod claims;
mod field;
pub mod hosts;
pub mod plan;
pub mod record;
pub mod spec;
pub mod status;
