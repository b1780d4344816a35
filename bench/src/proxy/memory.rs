//! Memory of idle connections, each of which has had one request, as connections of real clients have.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{Figure, Value};
use crate::Result;
use crate::clock::rest;
use crate::load::ProxyAddress;
use crate::matrix::ProxyUnderTest;
use crate::proc::proportional_kib;
use crate::role::is_whole;

const CONNECTIONS: usize = 1_000;
/// The pause in which proxies free memory with a delay.
const SETTLE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(20);

/// Measures each proxy, before it has served any other load.
pub(super) fn of_idle_connections(proxies: &[ProxyUnderTest]) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for proxy in proxies {
        let Some(address) = &proxy.http1 else { continue };
        eprintln!("memory of idle connections: {}", proxy.name);
        let fresh_kib = proportional_kib(&proxy.pids());
        let open = (0..CONNECTIONS).map(|_| used(address)).collect::<Result<Vec<_>>>()?;
        rest(SETTLE)?;
        let with_connections_kib = proportional_kib(&proxy.pids());
        let value = Value::Memory { fresh_kib, idle_connections: open.len(), with_connections_kib };
        figures.push(Figure { proxy: proxy.name.clone(), value });
    }
    Ok(figures)
}

/// A connection that has had one response.
fn used(address: &ProxyAddress) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address.address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", address.host).as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !is_whole(&answer) {
        match stream.read(&mut buffer)? {
            0 => return Err(format!("{} closed a connection that should stay open", address.address).into()),
            read => answer.extend_from_slice(buffer.get(..read).unwrap_or_default()),
        }
    }
    Ok(stream)
}
