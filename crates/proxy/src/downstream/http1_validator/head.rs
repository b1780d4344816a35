//! Checks the lines of one request head, and determines what follows it: a body, another request or another protocol.

use rouse_core::host::Host;

use super::Violation;
use super::field::{is_token, length, lists, split};

/// A head whose request line has been read.
#[derive(Debug)]
pub(super) struct Head {
    method: Method,
    version: Version,
    /// The authority of an absolute target, which Host must match.
    authority: Option<Box<[u8]>>,
    /// The bytes of the complete lines so far.
    pub(super) bytes: usize,
    pub(super) headers: usize,
    body: Option<Body>,
    host: bool,
    /// Whether Connection lists `upgrade`.
    upgrade: bool,
    protocol: Option<RequestProtocol>,
    /// The length of the request line with its CRLF, if hyper would reject it as it is.
    pub(super) unescaped: Option<usize>,
}

/// Whether clients send this byte in targets although hyper rejects it. Such bytes are forwarded percent-encoded.
pub(crate) fn needs_escape(byte: u8) -> bool {
    matches!(byte, b'"' | b'<' | b'>' | b'`')
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    Connect,
    Options,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    Http10,
    Http11,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    Sized(u64),
    Chunked,
}

/// The protocol in the first Upgrade header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestProtocol {
    /// h2c is never forwarded, so its request is an ordinary one.
    H2c,
    Other,
}

/// What follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The next request, after a body if there is one.
    Request(Option<Body>),
    /// Bytes of another protocol, if the pod agrees; after the body, if there is one.
    Opaque(Option<Body>),
    Nothing,
}

impl Head {
    /// Reads the request line, without its CRLF.
    pub(super) fn begin(line: &[u8]) -> Result<Self, Violation> {
        let mut parts = line.split(|byte| *byte == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Violation::RequestLine);
        };
        if !is_token(method) {
            return Err(Violation::RequestLine);
        }
        let version = match version {
            b"HTTP/1.1" => Version::Http11,
            b"HTTP/1.0" => Version::Http10,
            _ => return Err(Violation::Version),
        };
        // Clients never send a fragment. Two readers could see two paths.
        let is_bad = |byte: &u8| !matches!(byte, b'!'..=b'~') || *byte == b'#';
        if target.is_empty() || target.iter().any(is_bad) {
            return Err(Violation::Target);
        }
        let method = match method {
            b"CONNECT" => Method::Connect,
            b"OPTIONS" => Method::Options,
            _ => Method::Other,
        };
        let authority = authority(method, target)?.map(Box::from);
        let bytes = line.len() + 2;
        let (headers, body, host, upgrade, protocol) = (0, None, false, false, None);
        let unescaped = target.iter().any(|byte| needs_escape(*byte)).then_some(bytes);
        Ok(Self { method, version, authority, bytes, headers, body, host, upgrade, protocol, unescaped })
    }

    /// Reads a header line, without its CRLF.
    pub(super) fn header(&mut self, line: &[u8]) -> Result<(), Violation> {
        let (name, value) = split(line)?;
        // By length first: most names are not in this list.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.host(value),
            7 if name.eq_ignore_ascii_case(b"upgrade") => self.protocol(value),
            10 if name.eq_ignore_ascii_case(b"connection") => self.connection(value),
            14 if name.eq_ignore_ascii_case(b"content-length") => self.content_length(value),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.transfer_encoding(value),
            _ => Ok(()),
        }
    }

    fn host(&mut self, value: &[u8]) -> Result<(), Violation> {
        if self.host {
            return Err(Violation::RepeatedHost);
        }
        if Host::parse(value).is_err() {
            return Err(Violation::Host);
        }
        if self.authority.as_ref().is_some_and(|authority| !authority.eq_ignore_ascii_case(value)) {
            return Err(Violation::OtherHost);
        }
        self.host = true;
        Ok(())
    }

    fn protocol(&mut self, value: &[u8]) -> Result<(), Violation> {
        if !value.is_ascii() {
            return Err(Violation::HeaderValue);
        }
        let is_h2c = |name: &[u8]| {
            let (first, rest) = name.split_at_checked(3).unwrap_or_default();
            first.eq_ignore_ascii_case(b"h2c") && matches!(rest, [] | [b'/', ..])
        };
        let asked = if lists(value, is_h2c) { RequestProtocol::H2c } else { RequestProtocol::Other };
        // The first one is forwarded, see `upstream::wanted_upgrade`.
        self.protocol.get_or_insert(asked);
        Ok(())
    }

    fn connection(&mut self, value: &[u8]) -> Result<(), Violation> {
        // Later readers ignore a value that is not ASCII: they would see another request than the validator.
        if !value.is_ascii() {
            return Err(Violation::HeaderValue);
        }
        self.upgrade |= lists(value, |name| name.eq_ignore_ascii_case(b"upgrade"));
        Ok(())
    }

    fn content_length(&mut self, value: &[u8]) -> Result<(), Violation> {
        match self.body {
            _ if self.method == Method::Connect => return Err(Violation::ConnectBody),
            Some(Body::Sized(_)) => return Err(Violation::RepeatedContentLength),
            Some(Body::Chunked) => return Err(Violation::BothLengths),
            None => {}
        }
        self.body = Some(Body::Sized(length(value).ok_or(Violation::ContentLength)?));
        Ok(())
    }

    fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), Violation> {
        match self.body {
            _ if self.method == Method::Connect => return Err(Violation::ConnectBody),
            _ if self.version == Version::Http10 => return Err(Violation::OldTransferEncoding),
            Some(Body::Chunked) => return Err(Violation::RepeatedTransferEncoding),
            Some(Body::Sized(_)) => return Err(Violation::BothLengths),
            None => {}
        }
        if !value.eq_ignore_ascii_case(b"chunked") {
            return Err(Violation::TransferEncoding);
        }
        self.body = Some(Body::Chunked);
        Ok(())
    }

    /// Ends the head at its empty line.
    pub(super) fn end(&self) -> Result<Next, Violation> {
        if self.version == Version::Http11 && !self.host {
            return Err(Violation::MissingHost);
        }
        if self.method == Method::Connect {
            return Ok(Next::Nothing);
        }
        let body = self.body.filter(|body| *body != Body::Sized(0));
        let wanted = self.upgrade && self.protocol == Some(RequestProtocol::Other);
        if wanted && self.version == Version::Http11 {
            return Ok(Next::Opaque(body));
        }
        Ok(Next::Request(body))
    }
}

/// Checks the form of a target; the authority if it is absolute.
fn authority(method: Method, target: &[u8]) -> Result<Option<&[u8]>, Violation> {
    if method == Method::Connect {
        // A port is not optional here.
        let port = Host::parse(target).ok().and_then(|host| host.port());
        return if port.is_some() { Ok(None) } else { Err(Violation::TargetForm) };
    }
    match target {
        [b'/', ..] => return Ok(None),
        b"*" if method == Method::Options => return Ok(None),
        _ => {}
    }
    let Some(end) = target.windows(3).position(|three| three == b"://") else {
        return Err(Violation::TargetForm);
    };
    let (scheme, rest) = target.split_at(end);
    if !scheme.eq_ignore_ascii_case(b"http") && !scheme.eq_ignore_ascii_case(b"https") {
        return Err(Violation::Scheme);
    }
    let rest = rest.get(3..).unwrap_or_default();
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let authority = rest.get(..end).filter(|authority| Host::parse(authority).is_ok());
    authority.map(Some).ok_or(Violation::Target)
}

/// Reads a trailer line, without its CRLF.
pub(super) fn trailer(line: &[u8]) -> Result<(), Violation> {
    const OF_THE_HEAD: [&[u8]; 3] = [b"content-length", b"transfer-encoding", b"host"];
    let (name, _) = split(line)?;
    let belongs = OF_THE_HEAD.iter().any(|other| name.eq_ignore_ascii_case(other));
    if belongs { Err(Violation::Trailer) } else { Ok(()) }
}
