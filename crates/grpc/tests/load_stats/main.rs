//! Load reports of Envoys, with scripted Envoys that speak Envoy's API.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../support/channel.rs"]
mod channel;
mod harness;
mod reports;

/// The messages as an Envoy would write them.
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
    pub(crate) mod envoy {
        pub(crate) mod service {
            pub(crate) mod discovery {
                pub(crate) mod v3 {
                    include!("../../proto/generated/envoy.service.discovery.v3.rs");
                }
            }
            pub(crate) mod load_stats {
                pub(crate) mod v3 {
                    include!("../../proto/generated/envoy.service.load_stats.v3.rs");
                }
            }
        }
    }
}
