//! The gateway under attack: by clients, by pods, and by itself. An honest client is served throughout, and what was
//! smuggled never reaches a pod.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic, also in its helpers")]

mod claims;
mod crowds;
mod floods;
mod frames;
mod framing;
#[path = "../gateway/h2kit.rs"]
#[allow(dead_code, reason = "shared with the tests of the gateway, which use all of it")]
mod h2kit;
mod headers;
mod kit;
mod pods;
#[path = "../gateway/rig.rs"]
#[allow(dead_code, reason = "shared with the tests of the gateway, which use all of it")]
mod rig;
mod seats;
mod secure;
mod slow;
mod tunnels;
mod websockets;
#[path = "../gateway/wire.rs"]
#[allow(dead_code, reason = "shared with the tests of the gateway, which use all of it")]
mod wire;
