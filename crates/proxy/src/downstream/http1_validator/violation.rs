//! The HTTP/1 rules that a request can violate, each with a code and a sentence for the client.

use std::fmt;

use http::StatusCode;

/// The rule of HTTP/1 that a client broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A TLS handshake on a connection without TLS.
    Tls,
    /// More than one empty line before a request.
    EmptyLines,
    /// A line that ends with LF alone.
    BareLf,
    /// A CR that is not followed by LF.
    BareCr,
    /// Not `method SP target SP version`.
    RequestLine,
    /// A byte in the target that may not be there, or none at all.
    Target,
    /// A form of target that this method may not have.
    TargetForm,
    /// An absolute target of another scheme than http and https.
    Scheme,
    /// A version other than HTTP/1.0 and HTTP/1.1.
    Version,
    /// The request line is longer than allowed.
    LineTooLong,
    /// The head is longer than allowed.
    HeadTooLong,
    /// More header lines, or trailer lines, than allowed.
    TooManyHeaders,
    /// A header line that begins with white space.
    Folded,
    /// A header name that is not a token, or not followed by a colon at once.
    HeaderName,
    /// A byte in a header value that may not be there.
    HeaderValue,
    /// A Content-Length that is not one number, or too large a one.
    ContentLength,
    /// Content-Length more than once.
    RepeatedContentLength,
    /// A Transfer-Encoding other than `chunked`.
    TransferEncoding,
    /// Transfer-Encoding more than once.
    RepeatedTransferEncoding,
    /// Transfer-Encoding in HTTP/1.0.
    OldTransferEncoding,
    /// Both Content-Length and Transfer-Encoding.
    BothLengths,
    /// No Host in HTTP/1.1.
    MissingHost,
    /// Host more than once.
    RepeatedHost,
    /// A Host that is not `host[:port]`.
    Host,
    /// A Host other than the authority of the absolute target.
    OtherHost,
    /// CONNECT with a body.
    ConnectBody,
    /// Bytes after CONNECT, which is never accepted.
    AfterConnect,
    /// A chunk size that is not hexadecimal, or too large.
    ChunkSize,
    /// A byte in a chunk extension that may not be there.
    ChunkExtension,
    /// A chunk extension longer than allowed.
    ChunkLine,
    /// A chunk whose data is not followed by CRLF.
    ChunkEnd,
    /// The trailers are longer than allowed.
    TrailersTooLong,
    /// A trailer that could change the end or the host of the message.
    Trailer,
}

impl Violation {
    /// The rule's name in metrics.
    pub fn code(self) -> &'static str {
        self.texts().0
    }

    /// The status that the client gets.
    pub fn status(self) -> StatusCode {
        match self {
            Self::LineTooLong => StatusCode::URI_TOO_LONG,
            Self::HeadTooLong | Self::TooManyHeaders => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Tls => (
                "tls",
                "this port speaks HTTP without TLS, and the client began a TLS handshake: use http://, or the port \
                 for TLS",
            ),
            Self::EmptyLines => ("empty_lines", "there is more than one empty line before the request"),
            Self::BareLf => ("bare_lf", "a line ends with LF without CR"),
            Self::BareCr => ("bare_cr", "a CR is not followed by LF"),
            Self::RequestLine => ("request_line", "the request line is not a method, a target and a version"),
            Self::Target => ("target", "the target has a byte that is not allowed"),
            Self::TargetForm => ("target_form", "the method does not allow this form of target"),
            Self::Scheme => ("scheme", "the target's scheme is neither http nor https"),
            Self::Version => ("version", "the version is neither HTTP/1.0 nor HTTP/1.1"),
            Self::LineTooLong => ("line_too_long", "the request line is too long"),
            Self::HeadTooLong => ("head_too_long", "the head of the request is too long"),
            Self::TooManyHeaders => ("too_many_headers", "there are too many headers"),
            Self::Folded => ("folded", "a header line begins with white space"),
            Self::HeaderName => ("header_name", "a header name is not a token followed by a colon"),
            Self::HeaderValue => ("header_value", "a header value has a byte that is not allowed"),
            Self::ContentLength => {
                ("content_length", "Content-Length is not a single number in the allowed range")
            }
            Self::RepeatedContentLength => {
                ("repeated_content_length", "there is more than one Content-Length")
            }
            Self::TransferEncoding => ("transfer_encoding", "Transfer-Encoding is not chunked"),
            Self::RepeatedTransferEncoding => {
                ("repeated_transfer_encoding", "there is more than one Transfer-Encoding")
            }
            Self::OldTransferEncoding => {
                ("old_transfer_encoding", "Transfer-Encoding is not allowed in HTTP/1.0")
            }
            Self::BothLengths => ("both_lengths", "there are both Content-Length and Transfer-Encoding"),
            Self::MissingHost => ("missing_host", "there is no Host header"),
            Self::RepeatedHost => ("repeated_host", "there is more than one Host header"),
            Self::Host => ("host", "Host is not a host with an optional port"),
            Self::OtherHost => ("other_host", "Host and the authority of the target differ"),
            Self::ConnectBody => ("connect_body", "a CONNECT request must not have a body"),
            Self::AfterConnect => {
                ("after_connect", "no bytes may follow a CONNECT request, which is not supported")
            }
            Self::ChunkSize => {
                ("chunk_size", "a chunk size is not a hexadecimal number in the allowed range")
            }
            Self::ChunkExtension => ("chunk_extension", "a chunk extension has a byte that is not allowed"),
            Self::ChunkLine => ("chunk_line", "a chunk extension is too long"),
            Self::ChunkEnd => ("chunk_end", "a chunk is not followed by CRLF"),
            Self::TrailersTooLong => ("trailers_too_long", "the trailers are too long"),
            Self::Trailer => ("trailer", "a trailer has a name that is allowed in the head only"),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts().1)
    }
}
