//! Collects the output of a process, for assertions and for the failure message.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Child;
use tokio::task::JoinSet;

use crate::wait::{eventually, within};

/// The lines of a process, both streams together.
#[derive(Debug)]
pub struct Output {
    lines: Arc<Mutex<Vec<String>>>,
    // Ends with the process's pipes.
    readers: JoinSet<()>,
}

impl Output {
    /// Reads what `child` prints; both streams must be pipes.
    pub fn of(child: &mut Child) -> Self {
        let lines = Arc::default();
        let mut readers = JoinSet::new();
        if let Some(stdout) = child.stdout.take() {
            readers.spawn(read(stdout, "", Arc::clone(&lines)));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.spawn(read(stderr, "! ", Arc::clone(&lines)));
        }
        Self { lines, readers }
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a line for which `find` returns a value.
    pub async fn find<T>(&self, what: &str, find: impl Fn(&str) -> Option<T>) -> T {
        eventually(what, async || self.lines().iter().find_map(|line| find(line))).await
    }

    /// Waits until both streams have ended.
    pub async fn complete(&mut self) {
        within("the end of the output", async { while self.readers.join_next().await.is_some() {} }).await;
    }

    /// Prints all lines, if the test fails now.
    pub fn show_if_panicking(&self, whose: &str) {
        if std::thread::panicking() {
            eprintln!("---- {whose} printed:\n{}\n----", self.lines().join("\n"));
        }
    }
}

async fn read(stream: impl AsyncRead + Unpin, prefix: &'static str, lines: Arc<Mutex<Vec<String>>>) {
    let mut stream = BufReader::new(stream).lines();
    while let Ok(Some(line)) = stream.next_line().await {
        lines.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{prefix}{line}"));
    }
}
