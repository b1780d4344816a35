//! Request and response bodies on their way through the proxy.

mod replay;
mod request;
mod response;

use http_body::SizeHint;

pub(super) use self::request::{BodySource, RequestBody};
pub(crate) use self::response::{BodyError, ResponseBody};
pub(super) use self::response::{PodIncoming, StreamedResponse};

/// Adds `by` bytes to `size`.
fn longer(mut size: SizeHint, by: u64) -> SizeHint {
    // The upper bound first: the lower may not be above it.
    if let Some(upper) = size.upper() {
        size.set_upper(upper.saturating_add(by));
    }
    size.set_lower(size.lower().saturating_add(by));
    size
}
