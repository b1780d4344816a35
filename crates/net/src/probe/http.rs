//! The HTTP check of a probe: one GET, with the headers that kubelet sends.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TRAILER, TRANSFER_ENCODING,
};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{MAX_BODY, ProbeFailure, USER_AGENT, alongside};

/// The longest response head that is read.
const MAX_HEAD: usize = 64 * 1024;

/// The GET of `path` with the probe's own headers.
pub(super) fn request(
    address: SocketAddr,
    path: &str,
    headers: &[(String, String)],
) -> Result<Request<Empty<Bytes>>, ProbeFailure> {
    let slash = if path.starts_with('/') { "" } else { "/" };
    let uri: Uri = format!("{slash}{path}")
        .parse()
        .map_err(|error| ProbeFailure::InvalidRequest(format!("the path {path:?}: {error}")))?;
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = uri;
    *request.headers_mut() = self::headers(address, headers)?;
    Ok(request)
}

/// The probe's own headers, and kubelet's defaults for those that it does not set.
fn headers(address: SocketAddr, own: &[(String, String)]) -> Result<HeaderMap, ProbeFailure> {
    let mut headers = HeaderMap::new();
    for (name, value) in own {
        let unaskable = |what| ProbeFailure::InvalidRequest(format!("the header {name:?}: {what}"));
        let known = HeaderName::try_from(name).map_err(|_| unaskable("not a header's name"))?;
        let value = HeaderValue::try_from(value).map_err(|_| unaskable("not a header's value"))?;
        // The probe must not set the framing headers: with a Content-Length the server would wait for a body.
        if ![CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, TRAILER].contains(&known) {
            headers.append(known, value);
        }
    }
    let host = HeaderValue::try_from(address.to_string());
    let host = host.map_err(|_| ProbeFailure::InvalidRequest(format!("the address {address}")))?;
    headers.entry(HOST).or_insert(host);
    headers.entry(hyper::header::USER_AGENT).or_insert(HeaderValue::from_static(USER_AGENT));
    headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(headers)
}

/// Sends the request. Passes with a status of 200..=399 and a readable body, of which at most [`MAX_BODY`] bytes are read.
pub(super) async fn get<IO>(stream: IO, request: Request<Empty<Bytes>>) -> Result<(), ProbeFailure>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::Builder::new()
        // Go, and so kubelet, writes title-case header names, and some servers accept no other.
        .title_case_headers(true)
        .max_buf_size(MAX_HEAD)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(ProbeFailure::Http)?;
    let round_trip = async {
        let response = sender.send_request(request).await.map_err(ProbeFailure::Http)?;
        let status = response.status();
        if !(200..=399).contains(&status.as_u16()) {
            return Err(ProbeFailure::Status(status));
        }
        let (mut body, mut left) = (response.into_body(), MAX_BODY);
        while left > 0
            && let Some(frame) = body.frame().await
        {
            let frame = frame.map_err(ProbeFailure::Http)?;
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
        Ok(())
    };
    alongside(connection, round_trip).await
}
