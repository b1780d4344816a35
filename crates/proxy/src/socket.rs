//! A client's TCP connection, with one more handle: whoever holds its request can ask whether the client is still
//! there.
//!
//! hyper does not read on while a request's body waits to be taken, so it does not see a client that leaves then.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Socket {
    read: OwnedReadHalf,
    write: Arc<Mutex<OwnedWriteHalf>>,
}

/// Whether a client is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    There,
    /// It has closed its sending side. Whether it still reads cannot be told before something is sent to it.
    HalfClosed,
    /// It has reset the connection, or does not answer the kernel any more.
    Gone,
}

/// Asks whether the client is still there.
#[derive(Debug, Clone)]
pub(crate) struct Pulse(Arc<Mutex<OwnedWriteHalf>>);

impl Socket {
    pub(crate) fn new(stream: TcpStream) -> (Self, Pulse) {
        let (read, write) = stream.into_split();
        let write = Arc::new(Mutex::new(write));
        (Self { read, write: Arc::clone(&write) }, Pulse(write))
    }
}

impl Pulse {
    /// What is known of the client. What it sent before may still be unread.
    pub(crate) fn presence(&self) -> Presence {
        let events = look(lock(&self.0).as_ref(), PollFlags::RDHUP);
        if events.intersects(PollFlags::ERR | PollFlags::HUP) {
            Presence::Gone
        } else if events.contains(PollFlags::RDHUP) {
            Presence::HalfClosed
        } else {
            Presence::There
        }
    }

    /// Whether the client has sent what nobody has read yet, or has closed its side.
    pub(crate) fn has_unread(&self) -> bool {
        has_unread(lock(&self.0).as_ref())
    }
}

/// The same of a connection that is not split yet.
pub(crate) fn has_unread(stream: &TcpStream) -> bool {
    !look(stream, PollFlags::IN).is_empty()
}

fn look(stream: &TcpStream, event: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(stream, event)];
    // Asks, and does not wait.
    let answer = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let [fd] = &fds;
    if answer.is_ok() { fd.revents() } else { PollFlags::empty() }
}

/// Held for one call to the kernel only, and on one thread: never contended.
fn lock(half: &Mutex<OwnedWriteHalf>) -> MutexGuard<'_, OwnedWriteHalf> {
    half.lock().unwrap_or_else(PoisonError::into_inner)
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
        // One part, as most heads are, is cheaper without the list.
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_client_that_left_is_noticed_although_what_it_sent_is_unread() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_socket, pulse) = Socket::new(listener.accept().await.unwrap().0);
        assert!(!pulse.has_unread());
        client.write_all(b"POST / HTTP/1.1\r\n").await.unwrap();
        while !pulse.has_unread() {
            tokio::task::yield_now().await;
        }
        assert_eq!(pulse.presence(), Presence::There);
        client.shutdown().await.unwrap();
        while pulse.presence() != Presence::HalfClosed {
            tokio::task::yield_now().await;
        }
        client.set_zero_linger().unwrap();
        drop(client);
        while pulse.presence() != Presence::Gone {
            tokio::task::yield_now().await;
        }
    }
}
