//! Access to the API server: connect, list, watch, review tokens, and the permissions that the gateway needs.

pub mod permissions;

#[cfg(feature = "cluster")]
mod api;
#[cfg(feature = "cluster")]
pub mod connect;
#[cfg(feature = "cluster")]
pub mod issuer_keys;
#[cfg(feature = "cluster")]
pub mod token_review;
#[cfg(feature = "cluster")]
pub mod watch;
#[cfg(feature = "cluster")]
mod watches;

#[cfg(feature = "cluster")]
pub(crate) use api::{ObjectKind, at, describe, has_code, path, within};
#[cfg(feature = "cluster")]
pub(crate) use watches::{ObjectSelector, WatchedKind, Watches};
