//! Request heads, header edits and the proxy's placement without hyper types, for routing, holds, retries and telemetry.
//!
//! `upstream`, which has hyper's types, implements the heads and applies the edits.

mod edits;
mod head;
mod placement;

use http::header::HeaderName;

pub(crate) use self::edits::{HeaderEdit, HeaderEdits};
pub use self::head::RequestHead;
pub use self::placement::Placement;

/// Whether a header concerns one connection only, so that a proxy never forwards it.
pub(crate) fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}
