//! A TCP stream whose writes fail when the peer reads nothing for too long.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

/// How long a write may make no progress.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A TCP stream with a timeout for writes.
#[derive(Debug)]
pub(super) struct WriteTimeout {
    stream: TcpStream,
    /// The timer that fails a waiting write. `None` if no write waits.
    due: Option<Pin<Box<Sleep>>>,
    /// While true, writes have no timeout.
    off: Arc<AtomicBool>,
}

impl WriteTimeout {
    pub(super) fn new(stream: TcpStream, off: Arc<AtomicBool>) -> Self {
        Self { stream, due: None, off }
    }

    fn bound<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let written = write(Pin::new(&mut self.stream), context);
        if written.is_ready() {
            self.due = None;
            return written;
        }
        let due = self.due.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + WRITE_TIMEOUT)));
        if due.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        if self.off.load(Ordering::Relaxed) {
            // Drop the timer: a finished one must not be polled again. The next waiting write starts a new one.
            self.due = None;
            return Poll::Pending;
        }
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

impl Drop for WriteTimeout {
    fn drop(&mut self) {
        if self.due.is_some() {
            // Reset the connection: otherwise the kernel keeps the unread data for minutes.
            self.stream.set_zero_linger().ok();
        }
    }
}

impl AsyncRead for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for WriteTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.bound(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.bound(context, |stream, context| stream.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bound(context, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.bound(context, AsyncWrite::poll_shutdown)
    }
}
