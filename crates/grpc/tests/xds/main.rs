//! The xDS server, with a scripted client that speaks Envoy's proto.
#![allow(clippy::unwrap_used, reason = "a test")]

mod answers;
#[path = "../support/channel.rs"]
mod channel;
mod clients;
mod harness;
mod identity;
mod limits;
mod many;
mod order;
mod reconnect;
mod sotw;
mod subscriptions;

/// The messages as Envoy would read them.
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
    pub(crate) mod service {
        pub(crate) mod discovery {
            pub(crate) mod v3 {
                include!("../../proto/generated/envoy.service.discovery.v3.rs");
            }
        }
        pub(crate) mod endpoint {
            pub(crate) mod v3 {
                include!("../../proto/generated/envoy.service.endpoint.v3.rs");
            }
        }
    }
}
