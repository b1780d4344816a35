//! The peers that a client sends the same thing to, found by name: who they are, when to look them up, and when to try one that
//! fails again.
//!
//! The rules are state machines that get the time and random numbers passed in. `network.rs` has the look-ups and connections.

mod backoff;
mod circuit_breaker;
mod lookup_schedule;
mod network;
mod peer_set;

pub use backoff::Backoff;
pub use circuit_breaker::{CircuitBreaker, Content};
pub use lookup_schedule::LookupSchedule;
pub use network::{Dialer, DialerFuture, PeerStream, Resolver, ResolverFuture, SystemResolver, TcpDialer};
pub use peer_set::{MAX_PEERS, PeerSet};
