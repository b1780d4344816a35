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

/// Envoy's API. The modules are nested as the packages are: the generated code names them relative to each other.
pub(crate) mod envoy {
    /// Resources.
    pub(crate) mod config {
        include!("../proto/generated/envoy.config.rs");
    }

    /// Services.
    pub(crate) mod service {
        /// Discovery, aggregated.
        pub(crate) mod discovery {
            pub(crate) mod v3 {
                include!("../proto/generated/envoy.service.discovery.v3.rs");
            }
        }

        /// Discovery of endpoints alone.
        pub(crate) mod endpoint {
            pub(crate) mod v3 {
                include!("../proto/generated/envoy.service.endpoint.v3.rs");
            }
        }

        /// Load reports of Envoys.
        pub(crate) mod load_stats {
            pub(crate) mod v3 {
                include!("../proto/generated/envoy.service.load_stats.v3.rs");
            }
        }
    }
}
