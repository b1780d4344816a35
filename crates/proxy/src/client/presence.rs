//! Checks whether a client is still there, by asking the kernel about its socket.
//!
//! hyper does not read while a request's body waits to be taken, so it does not notice a client that leaves then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;

/// The write half of a client's socket: the connection writes to it, and requests check the client's presence with it.
pub(crate) type SharedWriteHalf = Arc<Mutex<OwnedWriteHalf>>;

/// Whether a client is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    There,
    /// It has closed its sending side. Only a write shows whether it still reads.
    HalfClosed,
    /// It has reset the connection, or does not answer the kernel any more.
    Gone,
}

/// Checks whether the client is still there.
#[derive(Debug, Clone)]
pub(crate) struct PresenceCheck(SharedWriteHalf);

impl PresenceCheck {
    pub(crate) fn new(socket: SharedWriteHalf) -> Self {
        Self(socket)
    }

    /// What the kernel knows of the client. Bytes that it sent before may still be unread.
    pub(crate) fn check(&self) -> Presence {
        let events = poll_now(lock(&self.0).as_ref(), PollFlags::RDHUP);
        if events.intersects(PollFlags::ERR | PollFlags::HUP) {
            Presence::Gone
        } else if events.contains(PollFlags::RDHUP) {
            Presence::HalfClosed
        } else {
            Presence::There
        }
    }

    /// Whether the client has sent bytes that are not read yet, or has closed its side.
    pub(crate) fn has_unread(&self) -> bool {
        has_unread(lock(&self.0).as_ref())
    }
}

/// Whether `stream` has bytes that are not read yet, or its peer has closed its side.
pub(crate) fn has_unread(stream: &TcpStream) -> bool {
    !poll_now(stream, PollFlags::IN).is_empty()
}

/// The events of `stream`, without waiting for any.
fn poll_now(stream: &TcpStream, event: PollFlags) -> PollFlags {
    let mut fds = [PollFd::new(stream, event)];
    let polled = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let [fd] = &fds;
    if polled.is_ok() { fd.revents() } else { PollFlags::empty() }
}

/// Held for one system call only, and on one thread: never contended.
pub(crate) fn lock(half: &Mutex<OwnedWriteHalf>) -> MutexGuard<'_, OwnedWriteHalf> {
    half.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (_read, write) = listener.accept().await.unwrap().0.into_split();
        let presence = PresenceCheck::new(Arc::new(Mutex::new(write)));
        assert!(!presence.has_unread());
        client.write_all(b"POST / HTTP/1.1\r\n").await.unwrap();
        while !presence.has_unread() {
            tokio::task::yield_now().await;
        }
        assert_eq!(presence.check(), Presence::There);
        client.shutdown().await.unwrap();
        while presence.check() != Presence::HalfClosed {
            tokio::task::yield_now().await;
        }
        client.set_zero_linger().unwrap();
        drop(client);
        while presence.check() != Presence::Gone {
            tokio::task::yield_now().await;
        }
    }
}
