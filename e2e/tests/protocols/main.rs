//! Each protocol in three ways: directly to the app (which shows that the check itself is right), through a gateway whose
//! service is at zero, and through one whose service is warm.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests, also where a check is a function of its own"
)]

mod app;
mod expect;
mod grpc;
mod headers;
mod http1;
mod http2;
mod large;
mod streams;
mod trailers;
mod upgrades;
