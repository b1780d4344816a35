//! Authentication of pods: tokens by key set and by review, shared keys and client certificates.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]

mod any_mode;
mod certificates;
mod key_sets;
mod reviews;
mod shared_keys;
mod tokens;

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use rouse_net::auth::{AuthError, CredentialRequest};
use rouse_testkit::token_issuer::START;

thread_local! {
    /// Each test has a thread of its own, so it also has a time of its own.
    static NOW: Cell<u64> = const { Cell::new(START) };
}

fn time_of_day() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOW.get())
}

fn set_time(seconds: u64) {
    NOW.set(seconds);
}

/// Lets time pass on both clocks: the time of day, and the paused one of tokio.
async fn pass(duration: Duration) {
    set_time(NOW.get() + duration.as_secs());
    tokio::time::advance(duration).await;
    settle().await;
}

/// Lets every task run that can.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// A request to register, over TLS.
fn request(authorization: Option<&str>) -> CredentialRequest<'_> {
    CredentialRequest {
        method: "POST",
        path: "/v1/registrations",
        body: b"{}",
        authorization: authorization.map(str::as_bytes),
        certificate: None,
        secure: true,
    }
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, AuthError>, reason: &str) {
    match result {
        Err(AuthError::Refused(text)) => assert!(text.contains(reason), "{text:?} instead of {reason:?}"),
        other => panic!("{other:?} instead of {reason:?}"),
    }
}

#[track_caller]
fn assert_unavailable<T: std::fmt::Debug>(result: Result<T, AuthError>, reason: &str) {
    match result {
        Err(AuthError::Unavailable(text)) => assert!(text.contains(reason), "{text:?} instead of {reason:?}"),
        other => panic!("{other:?} instead of {reason:?}"),
    }
}
