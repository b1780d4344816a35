//! Parts of a client that sends the same state to several peers: discovery by DNS name, backoff, circuit breaker.
//!
//! The rules are state machines that get the time and random numbers passed in. `network.rs` has the look-ups and connections.

mod backoff;
mod circuit_breaker;
mod discovery;
mod lookup_schedule;
mod network;
mod peer_set;
mod url;

pub use backoff::Backoff;
pub use circuit_breaker::{CircuitBreaker, Content};
pub use discovery::{Discovery, LookupError};
pub use lookup_schedule::LookupSchedule;
pub use network::{Dialer, DialerFuture, PeerStream, Resolver, ResolverFuture, SystemResolver, TcpDialer};
pub use peer_set::{MAX_PEERS, PeerSet};
pub use url::{BadPeerUrl, PeerHost, PeerUrl};
