//! Memory of connections that wait: each has had one request answered, as those of real clients have.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{Figure, Value};
use crate::Result;
use crate::clock::rest;
use crate::load::Door;
use crate::matrix::Contestant;
use crate::proc::proportional_kib;
use crate::role::is_whole;

const CONNECTIONS: usize = 1_000;
/// What is freed late, is freed by then.
const SETTLE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(20);

/// Of each contestant, before it has served any other load.
pub(super) fn of_idle_connections(contestants: &[Contestant]) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for contestant in contestants {
        let Some(door) = &contestant.http1 else { continue };
        eprintln!("memory of idle connections: {}", contestant.name);
        let fresh_kib = proportional_kib(&contestant.pids());
        let open = (0..CONNECTIONS).map(|_| used(door)).collect::<Result<Vec<_>>>()?;
        rest(SETTLE)?;
        let with_connections_kib = proportional_kib(&contestant.pids());
        let value = Value::Memory { fresh_kib, idle_connections: open.len(), with_connections_kib };
        figures.push(Figure { contestant: contestant.name.clone(), value });
    }
    Ok(figures)
}

/// A connection that has had one answer.
fn used(door: &Door) -> Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&door.address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", door.host).as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while !is_whole(&answer) {
        match stream.read(&mut buffer)? {
            0 => return Err(format!("{} closed a connection that should stay", door.address).into()),
            read => answer.extend_from_slice(buffer.get(..read).unwrap_or_default()),
        }
    }
    Ok(stream)
}
