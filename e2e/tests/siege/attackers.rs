//! Clients that take up as much as they can.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The window of each stream: 2 MB.
const WINDOW: u32 = 2 << 20;

/// A connection with a small receive buffer: what the kernel holds is not the gateway's.
pub(crate) async fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_recv_buffer_size(16 * 1024)?;
    socket.connect(address).await
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A head in literals; `method` is its index in HPACK's static table.
fn head(method: u8, host: &str, path: &str) -> Vec<u8> {
    let mut block = vec![0x80 | method, 0x86];
    for (index, value) in [(4, path), (1, host)] {
        block.extend([index, u8::try_from(value.len()).unwrap()]);
        block.extend(value.as_bytes());
    }
    block
}

fn preface() -> Vec<u8> {
    let mut all = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let window = [&[0, 4][..], &WINDOW.to_be_bytes()].concat();
    all.extend(frame(SETTINGS, 0, 0, &window));
    all.extend(frame(WINDOW_UPDATE, 0, 0, &((1u32 << 31) - 1 - 65_535).to_be_bytes()));
    all
}

/// Asks for `path` on so many streams, reads a little, and then nothing more.
pub(crate) async fn downloads_over_http2(
    address: SocketAddr,
    host: &str,
    path: &str,
    streams: u32,
) -> std::io::Result<TcpStream> {
    let mut stream = connect(address).await?;
    let mut all = preface();
    for number in 0..streams {
        all.extend(frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &head(2, host, path)));
    }
    stream.write_all(&all).await?;
    stream.read_exact(&mut [0; 9]).await?;
    Ok(stream)
}

/// Sends a whole window of a body on so many streams, and never its end.
pub(crate) async fn uploads_over_http2(
    address: SocketAddr,
    host: &str,
    path: &str,
    streams: u32,
) -> std::io::Result<TcpStream> {
    let mut stream = connect(address).await?;
    let mut all = preface();
    for number in 0..streams {
        let id = 2 * number + 1;
        all.extend(frame(HEADERS, END_HEADERS, id, &head(3, host, path)));
        for _ in 0..3 {
            all.extend(frame(DATA, 0, id, &[b'a'; 16 * 1024]));
        }
    }
    stream.write_all(&all).await?;
    Ok(stream)
}

/// Asks for `path`, reads the first bytes, and then nothing more.
pub(crate) async fn download(address: SocketAddr, host: &str, path: &str) -> std::io::Result<TcpStream> {
    let mut stream = connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
    stream.read_exact(&mut [0; 9]).await?;
    Ok(stream)
}

/// Sends a body for as long as anybody takes it, in the background of the flood.
pub(crate) async fn upload(mut stream: TcpStream, host: String, path: &'static str) {
    let head = format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000000000\r\n\r\n");
    if stream.write_all(head.as_bytes()).await.is_ok() {
        while stream.write_all(&[b'a'; 16 * 1024]).await.is_ok() {}
    }
    std::future::pending::<()>().await;
}

/// Asks again and again, and reads nothing.
pub(crate) async fn unread(mut stream: TcpStream, request: String) {
    while stream.write_all(request.as_bytes()).await.is_ok() {}
    std::future::pending::<()>().await;
}
