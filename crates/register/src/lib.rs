//! Push: pods register themselves. `wire` is the format of a registration, `server` is the gateway's side, and `client` is
//! the sidecar's.

pub mod client;
pub mod server;
pub mod wire;
