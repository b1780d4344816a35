//! What is known of a request once it is over: its record, and the metrics and the access log that are made of it.

pub mod access_log;
pub mod metrics;
mod record;

pub(crate) use self::record::{AttemptRecord, Recorder, RequestRecord, ResponseRecord};
