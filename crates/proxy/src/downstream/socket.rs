//! A client's TCP connection, whose write half is shared with the check of the client's presence.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

use crate::client::{PresenceCheck, SharedWriteHalf, lock};

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Socket {
    read: OwnedReadHalf,
    write: SharedWriteHalf,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream) -> (Self, PresenceCheck) {
        let (read, write) = stream.into_split();
        let write = Arc::new(Mutex::new(write));
        (Self { read, write: Arc::clone(&write) }, PresenceCheck::new(write))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().read).poll_read(context, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *lock(&self.write)).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // One part, like most heads, is cheaper to write without the list.
        if let [part] = parts {
            return self.poll_write(context, part);
        }
        Pin::new(&mut *lock(&self.write)).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.write)).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *lock(&self.write)).poll_shutdown(context)
    }
}
