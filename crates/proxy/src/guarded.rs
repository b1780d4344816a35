//! A client's HTTP/1 connection as hyper reads it: past the [`Guard`].

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rouse_core::time::Clock as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::crowd::HeadClock;
use crate::gateway::Gateway;
use crate::guard::{Guard, Phase, Refused, Spoilt};
use crate::metrics::{OTHER_METHOD, Protocol};

/// A connection whose bytes are looked at before hyper sees them.
#[derive(Debug)]
pub(crate) struct Guarded<IO> {
    io: IO,
    guard: Guard,
    head: HeadClock,
    gateway: Arc<Gateway>,
    /// The last byte that hyper has seen.
    last: Option<u8>,
    /// What hyper gets in place of what was refused, and then nothing more.
    spoilt: Option<Spoilt>,
    /// What was refused in a body: hyper is told after what came before it, which may be whole requests.
    broken: Option<Refused>,
}

impl<IO> Guarded<IO> {
    pub(crate) fn new(io: IO, gateway: &Arc<Gateway>, head: HeadClock) -> Self {
        let guard = Guard::new(gateway.settings.limits.heads);
        Self { io, guard, head, gateway: Arc::clone(gateway), last: None, spoilt: None, broken: None }
    }

    /// What came is fine, or hyper is made to refuse it.
    fn look(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> io::Result<()> {
        let looked = self.guard.inspect(buf.filled().get(before..).unwrap_or_default());
        match self.guard.phase() {
            Phase::Head => self.head.begin(self.gateway.settings.clock.now()),
            Phase::Between | Phase::Body | Phase::Opaque => self.head.end(),
        }
        let Err(refused @ Refused { at, in_head, .. }) = looked else {
            self.last = self.last_of(buf, before);
            return Ok(());
        };
        self.head.end();
        buf.set_filled(before + at);
        if !in_head {
            // The pod has had the head already: both sides are cut.
            self.broken = Some(refused);
            return if at == 0 { Err(broken(refused)) } else { Ok(()) };
        }
        // hyper answers by itself, so this is the only line in the books.
        let Gateway { metrics, no_route, settings, .. } = &*self.gateway;
        let spoilt = Spoilt::new(&refused, &settings.limits.heads, self.last_of(buf, before));
        metrics.ended(no_route, spoilt.status(), Protocol::http1, OTHER_METHOD, Duration::ZERO);
        self.spoilt = Some(spoilt);
        self.spoil(buf);
        Ok(())
    }

    /// The last byte that hyper has seen, with what is in `buf` since `before`.
    fn last_of(&self, buf: &ReadBuf<'_>, before: usize) -> Option<u8> {
        buf.filled().get(before..).and_then(<[u8]>::last).copied().or(self.last)
    }

    fn spoil(&mut self, buf: &mut ReadBuf<'_>) {
        if let Some(spoilt) = &mut self.spoilt {
            while buf.remaining() > 0 {
                match spoilt.next(buf.remaining()) {
                    [] => break,
                    bytes => buf.put_slice(bytes),
                }
            }
        }
    }
}

fn broken(refused: Refused) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, refused)
}

impl<IO: AsyncRead + Unpin> AsyncRead for Guarded<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.spoilt.is_some() {
            this.spoil(buf);
            return Poll::Ready(Ok(()));
        }
        if let Some(refused) = this.broken {
            return Poll::Ready(Err(broken(refused)));
        }
        let before = buf.filled().len();
        match Pin::new(&mut this.io).poll_read(context, buf) {
            Poll::Ready(Ok(())) => Poll::Ready(this.look(buf, before)),
            other => other,
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Guarded<IO> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }
}
