//! The generated messages and services of the files in `proto/`.
#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]

/// Load reports.
pub(crate) mod report {
    include!("../proto/generated/rouse.report.v1.rs");
}

/// KEDA's interface to external scalers.
pub(crate) mod externalscaler {
    include!("../proto/generated/externalscaler.rs");
}

/// gRPC health.
pub(crate) mod health {
    include!("../proto/generated/grpc.health.v1.rs");
}
