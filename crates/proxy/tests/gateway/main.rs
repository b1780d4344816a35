//! The data plane against pods that a test holds in its hand.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic, also in its helpers")]

mod access;
mod addresses;
mod back_pressure;
mod bad_pods;
mod bodies;
mod books;
mod budget;
mod certificates;
mod cluster_ip;
mod connections;
mod deadlines;
mod drain_tail;
mod draining;
mod ejection;
mod farewells;
mod h2kit;
mod half_close;
mod headers;
mod holding;
mod http2;
mod leaving;
mod podless;
mod refusals;
mod retries;
mod rig;
mod silence;
mod smoke;
mod stalls;
mod starting;
mod tls;
mod upgrades;
mod upstream_tls;
mod wire;
