//! A minimal proxy on the same runtime, as a lower bound of the cost: no timers, limits, metrics, HTTP/2 or request
//! bodies. It parses only message lengths and copies bytes.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::thread;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, LocalSet};

use super::block_on;
use crate::Result;
use crate::args::Forward;

/// The same as for every measured proxy.
const WORKERS: usize = 2;
/// A larger head is refused.
const MOST_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
const COPY: usize = 64 * 1024;

/// Runs until it is killed.
pub(crate) fn run(&Forward { listen, upstream }: &Forward) -> Result<()> {
    let worker = move || block_on(LocalSet::new().run_until(serve(listen, upstream)));
    let workers: Vec<_> = (0..WORKERS).map(|_| thread::spawn(worker)).collect();
    workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker panicked")?)
}

/// Each worker has its own listener (`SO_REUSEPORT`), and the kernel distributes the connections.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(4096)?;
    TcpListener::from_std(socket.into())
}

async fn serve(address: SocketAddr, upstream: SocketAddr) -> Result<()> {
    let listener = listen(address)?;
    let pool = Rc::new(Pool { upstream, idle: RefCell::default() });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => { connections.spawn_local(relay(accepted?.0, Rc::clone(&pool))); }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Idle upstream connections of this worker.
struct Pool {
    upstream: SocketAddr,
    idle: RefCell<Vec<TcpStream>>,
}

impl Pool {
    async fn take(&self) -> io::Result<TcpStream> {
        // Taken out first: the borrow must not be held across the await.
        let kept = self.idle.borrow_mut().pop();
        if let Some(stream) = kept {
            return Ok(stream);
        }
        let stream = TcpStream::connect(self.upstream).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn give_back(&self, stream: TcpStream) {
        self.idle.borrow_mut().push(stream);
    }
}

async fn relay(mut client: TcpStream, pool: Rc<Pool>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let (mut request, mut response) = (Vec::with_capacity(MOST_HEAD), Vec::with_capacity(COPY));
    loop {
        let (head, last) = match request_head(&request)? {
            Some(head) => head,
            None if client.read_buf(&mut request).await? == 0 => return Ok(()),
            None => continue,
        };
        request.clear();
        let mut upstream = pool.take().await?;
        upstream.write_all(&head).await?;
        answer(&mut upstream, &mut client, &mut response).await?;
        pool.give_back(upstream);
        if last {
            return client.shutdown().await;
        }
    }
}

/// Forwards one response.
async fn answer(upstream: &mut TcpStream, client: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.clear();
    let whole = loop {
        if let Some(whole) = response_length(buffer)? {
            break whole;
        }
        if upstream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    };
    let mut left = whole.checked_sub(buffer.len()).ok_or_else(|| bad("bytes after the response"))?;
    client.write_all(buffer).await?;
    while left > 0 {
        buffer.clear();
        match upstream.read_buf(buffer).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => left = left.checked_sub(read).ok_or_else(|| bad("bytes after the response"))?,
        }
        client.write_all(buffer).await?;
    }
    Ok(())
}

fn bad(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// The request head to forward, and whether the client sent `Connection: close`. That header is removed: the upstream
/// would close its connection, too.
fn request_head(bytes: &[u8]) -> io::Result<Option<(Vec<u8>, bool)>> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Ok(httparse::Status::Partial) if bytes.len() < MOST_HEAD => return Ok(None),
        _ => return Err(bad("not a request without a body")),
    }
    let is_connection = |name: &str| name.eq_ignore_ascii_case("connection");
    let closes = |header: &&httparse::Header<'_>| {
        is_connection(header.name) && header.value.eq_ignore_ascii_case(b"close")
    };
    if !head.headers.iter().any(|header| closes(&header)) {
        return Ok(Some((bytes.to_vec(), false)));
    }
    let mut rest = format!("GET {} HTTP/1.1\r\n", head.path.unwrap_or("/")).into_bytes();
    for header in head.headers.iter().filter(|header| !is_connection(header.name)) {
        rest.extend_from_slice(header.name.as_bytes());
        rest.extend_from_slice(b": ");
        rest.extend_from_slice(header.value);
        rest.extend_from_slice(b"\r\n");
    }
    rest.extend_from_slice(b"\r\n");
    Ok(Some((rest, true)))
}

/// The length of a response with its body, once its head is complete.
fn response_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if bytes.len() < MOST_HEAD => return Ok(None),
        _ => return Err(bad("not a response")),
    };
    let body = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let body = body.and_then(|header| std::str::from_utf8(header.value).ok()?.parse::<usize>().ok());
    body.and_then(|body| length.checked_add(body)).map(Some).ok_or_else(|| bad("a response without a length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_goes_on_as_it_is_but_for_the_end_of_its_connection() {
        let plain = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        assert_eq!(request_head(plain).unwrap(), Some((plain.to_vec(), false)));
        let last = b"GET / HTTP/1.1\r\nhost: a\r\nConnection: close\r\n\r\n";
        assert_eq!(request_head(last).unwrap(), Some((plain.to_vec(), true)));
        assert_eq!(request_head(b"GET / HT").unwrap(), None);
        assert!(request_head(b"POST / HTTP/1.1\r\nhost: a\r\n\r\nbody").is_err());
    }

    #[test]
    fn a_response_is_as_long_as_it_says() {
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(response_length(head.as_bytes()).unwrap(), Some(head.len() + 5));
        assert_eq!(response_length(b"HTTP/1.1 200").unwrap(), None);
        assert!(response_length(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
