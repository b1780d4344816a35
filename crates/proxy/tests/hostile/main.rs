//! The gateway under attack by clients and pods, and requests that loop back to it. An honest client is served throughout,
//! and no smuggled request reaches a pod.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic, also in its helpers")]

mod claims;
mod connection_limit;
mod floods;
mod frames;
mod framing;
mod headers;
mod kit;
mod many_connections;
mod pods;
mod secure;
mod slow;
mod tunnels;
mod websockets;

use rouse_testkit::proxy::{http2_peers, rig, wire};
