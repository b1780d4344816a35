//! One client connection: its place in the limiter, its TLS handshake, its protocol, its requests and its end.

mod answer;
mod connection;
pub mod guard;
mod guarded;
mod limiter;
mod reject;
mod socket;

pub(crate) use self::connection::{Accepted, Downstream};
pub(crate) use self::limiter::ConnectionLimiter;
