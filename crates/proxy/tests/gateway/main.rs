//! Tests of the data plane. The test itself plays pods and clients, through sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic, also in its helpers")]

mod access;
mod addresses;
mod back_pressure;
mod bad_pods;
mod bodies;
mod budget;
mod certificates;
mod cluster_ip;
mod connections;
mod deadlines;
mod drain_tail;
mod draining;
mod ejection;
mod goaway;
mod half_close;
mod headers;
mod holding;
mod http2;
mod leaving;
mod load;
mod metrics;
mod no_pod;
mod refusals;
mod retries;
mod silence;
mod smoke;
mod stalls;
mod starting;
mod tls;
mod upgrades;
mod upstream_tls;

use rouse_testkit::proxy::{http2_peers, rig, wire};
