//! One client connection: its place in the limiter, its TLS handshake, its protocol, its requests and its end.

mod answer;
mod connection;
pub mod http1_validator;
mod limiter;
mod reject;
mod socket;
mod validated_stream;

pub use self::connection::ListenerOptions;
pub(crate) use self::connection::{Accepted, Downstream};
pub(crate) use self::limiter::ConnectionLimiter;
