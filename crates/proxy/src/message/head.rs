//! The head of a request: method, version, target and headers by name, without hyper types.

use http::header::{HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery};
use http::{Method, Version};

/// The head of a request, however its bytes are kept.
pub trait RequestHead {
    /// The method.
    fn method(&self) -> &Method;

    /// The version of HTTP that the request came in.
    fn version(&self) -> Version;

    /// The authority of the target: HTTP/2 and the absolute form have one.
    fn authority(&self) -> Option<&str>;

    /// The path of the target, without its query.
    fn path(&self) -> &str;

    /// The first value of a header.
    fn header(&self, name: &HeaderName) -> Option<&[u8]>;

    /// All values of a header, in order.
    fn header_values(&self, name: &HeaderName) -> impl Iterator<Item = &[u8]>;

    /// How many header lines there are.
    fn header_count(&self) -> usize;

    /// How many bytes the names and values of all headers have.
    fn header_bytes(&self) -> usize;

    /// The first value of a header, to keep when the head is gone. Shares the bytes, does not copy them.
    fn kept_header(&self, name: &HeaderName) -> Option<HeaderValue>;

    /// The path and the query, to keep when the head is gone. Shares the bytes, does not copy them.
    fn kept_target(&self) -> Option<PathAndQuery>;

    /// The authority, to keep when the head is gone. Shares the bytes, does not copy them.
    fn kept_authority(&self) -> Option<Authority>;
}
