//! The app of the cold start benchmark: it waits, listens, and answers with the moment at which it began to listen.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use super::{address, block_on};
use crate::Result;
use crate::clock::{delay, unix_micros};

/// Runs the app until it is stopped.
pub(crate) fn run() -> Result<()> {
    block_on(serve())
}

async fn serve() -> Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let wait = std::env::var("START_DELAY_MS").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    delay(Duration::from_millis(wait)).await;
    let listener = TcpListener::bind(address()?).await?;
    let since = unix_micros();
    println!("listening {since}");
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => { connections.spawn(answer(accepted?.0, since)); }
            Some(_) = connections.join_next() => {}
            _ = term.recv() => return Ok(()),
        }
    }
}

/// Answers requests until the client closes the connection. Requests have no body.
async fn answer(mut stream: TcpStream, since: u64) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let body = format!("{since}\n");
    let length = body.len();
    let response =
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n{body}");
    let mut head = Vec::new();
    while stream.read_buf(&mut head).await? > 0 {
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            stream.write_all(response.as_bytes()).await?;
        }
    }
    Ok(())
}
