//! A blocking HTTP client for one request over a new connection, with the time of the first byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::Result;
use crate::clock::unix_micros;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(40);

/// A response and its timestamps.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
    /// When the request began, before the connection was made.
    pub(crate) began_us: u64,
    /// When the first byte arrived.
    pub(crate) first_byte_us: u64,
}

pub(crate) fn get(address: SocketAddr, host: &str, path: &str) -> Result<Answer> {
    send(address, &format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"))
}

pub(crate) fn post_json(address: SocketAddr, path: &str, json: &str) -> Result<Answer> {
    let length = json.len();
    send(
        address,
        &format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{json}"
        ),
    )
}

fn send(address: SocketAddr, request: &str) -> Result<Answer> {
    let began_us = unix_micros();
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    stream.write_all(request.as_bytes())?;
    let mut bytes = vec![0; 16 * 1024];
    let first = stream.read(&mut bytes)?;
    let first_byte_us = unix_micros();
    bytes.truncate(first);
    stream.read_to_end(&mut bytes)?;
    let (status, body) = parse(&bytes).ok_or_else(|| format!("{address} did not answer with HTTP"))?;
    Ok(Answer { status, body, began_us, first_byte_us })
}

/// The status and the body of a whole response.
fn parse(bytes: &[u8]) -> Option<(u16, String)> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Some((status, if chunked { unchunk(body)? } else { body.to_owned() }))
}

fn unchunk(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n")?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.push_str(after.get(..size)?);
        rest = after.get(size..)?.strip_prefix("\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_its_status_and_its_body() {
        let cases: [(&str, Option<(u16, &str)>); 4] = [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", Some((200, "hi"))),
            ("HTTP/1.1 503 No\r\n\r\n", Some((503, ""))),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n",
                Some((200, "hi!")),
            ),
            ("", None),
        ];
        for (bytes, expected) in cases {
            let expected = expected.map(|(status, body)| (status, body.to_owned()));
            assert_eq!(parse(bytes.as_bytes()), expected, "{bytes:?}");
        }
    }
}
