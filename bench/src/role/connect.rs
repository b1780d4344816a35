//! Load over new connections: h2load keeps its own. Says as JSON what became of the requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::block_on;
use crate::Result;
use crate::args::Connect;
use crate::clock::Stopwatch;
use crate::stats::float;

/// For one request, with its connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// What became of the requests.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) succeeded: u32,
    pub(crate) failed: u32,
    pub(crate) per_second: f64,
}

/// Sends them all.
pub(crate) fn run(connect: &Connect) -> Result<()> {
    block_on(async {
        let began = Stopwatch::start();
        let left = Arc::new(AtomicU32::new(connect.count));
        let mut clients = JoinSet::new();
        for _ in 0..connect.at_once {
            clients.spawn(client(connect.clone(), Arc::clone(&left)));
        }
        let succeeded: u32 = clients.join_all().await.into_iter().sum();
        let per_second = float(succeeded.into()) / began.elapsed().as_secs_f64();
        let tally = Tally { succeeded, failed: connect.count - succeeded, per_second };
        println!("{}", serde_json::to_string(&tally)?);
        Ok(())
    })
}

/// One request after the other, as long as there are any left. Answers how many succeeded.
async fn client(connect: Connect, left: Arc<AtomicU32>) -> u32 {
    let request = format!("GET / HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", connect.host);
    let mut succeeded = 0;
    let take = |left: u32| left.checked_sub(1);
    while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
        let done = timeout(PATIENCE, one(&connect, request.as_bytes())).await;
        succeeded += u32::from(matches!(done, Ok(Ok(true))));
    }
    succeeded
}

async fn one(connect: &Connect, request: &[u8]) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(connect.address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(request).await?;
    let mut answer = Vec::with_capacity(2048);
    stream.read_to_end(&mut answer).await?;
    Ok(answer.starts_with(b"HTTP/1.1 200 "))
}
