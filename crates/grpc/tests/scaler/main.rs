//! KEDA's external scaler, with a scripted client that speaks KEDA's proto.
#![allow(clippy::unwrap_used, reason = "a test")]

mod active;
#[path = "../support/channel.rs"]
mod channel;
mod harness;
mod health;
mod limits;
mod triggers;
mod wire;

/// The messages as KEDA would read them.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
mod proto {
    pub(crate) mod externalscaler {
        include!("../../proto/generated/externalscaler.rs");
    }
    pub(crate) mod health {
        include!("../../proto/generated/grpc.health.v1.rs");
    }
}
