//! Code that several test suites share. Never a dependency of the product.

#[cfg(feature = "api-server")]
pub mod api_server;
#[cfg(feature = "certificates")]
pub mod certificates;
#[cfg(feature = "envoy")]
pub mod envoy;
pub mod fakes;
pub mod generated_docs;
pub mod halted_writer;
#[cfg(feature = "proxy")]
pub mod proxy;
pub mod slot_requests;
#[cfg(feature = "token-issuer")]
pub mod token_issuer;
pub mod vectors;
