//! The head of a request as routing, holds, retries and records read it, and the header edits that they ask for. The rooms
//! that speak HTTP (`downstream` and `upstream`) implement the one and apply the other.

mod edits;
mod head;

use http::header::HeaderName;

pub(crate) use self::edits::{HeaderEdit, HeaderEdits};
pub use self::head::RequestHead;

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
