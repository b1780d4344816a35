//! The record of each request, the data plane's metrics, and the access log.

pub mod access_log;
pub mod metrics;
mod record;

pub(crate) use self::record::{AttemptRecord, Recorder, RequestRecord, ResponseRecord};
