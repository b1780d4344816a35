//! Telemetry of requests: the record of each request, and the metrics and the access log that are made from it.

pub mod access_log;
pub mod metrics;
mod record;

pub(crate) use self::record::{AttemptRecord, Recorder, RequestRecord, ResponseRecord};
