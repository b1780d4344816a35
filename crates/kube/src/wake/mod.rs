//! Finds the workload of a route, and reads and writes its scale.
//!
//! `Waker` owns the queue of services to wake, the workloads of all routes, and the failures of the last wakes. It
//! asks other modules through `WakeContext`.

mod failures;
mod queue;
mod scale;
mod waker;
mod workload_lookup;

pub(crate) use failures::FailureKind;
pub(crate) use scale::{ScaleClient, ScaleWriteError};
pub(crate) use waker::{WakeContext, Waker};
pub(crate) use workload_lookup::{Candidates, find};
