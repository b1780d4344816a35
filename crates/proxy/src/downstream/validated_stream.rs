//! A client's HTTP/1 connection as hyper reads it, through the [`Http1Validator`].
//!
//! hyper gets complete heads only. In place of a refused head it reads [`REFUSED`], so that the refusal is answered, counted and
//! logged like every request.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rouse_core::time::Clock as _;
use rouse_net::clock::TokioClock;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::http1_validator::{FramingPhase, Http1Validator, REFUSED, Refused, needs_escape};
use super::limiter::ReadTracker;
use crate::budget::HeadLimits;

/// A connection whose bytes are checked before hyper reads them.
#[derive(Debug)]
pub(crate) struct ValidatedStream<IO> {
    io: IO,
    guard: Http1Validator,
    tracker: ReadTracker,
    clock: TokioClock,
    /// The beginning of a head whose end has not arrived.
    held: Vec<u8>,
    /// What hyper reads next, before anything else.
    ready: Vec<u8>,
    end: Option<End>,
    /// hyper has written all of its responses.
    flushed: bool,
}

/// Why nothing more is read.
#[derive(Debug, Clone, Copy)]
enum End {
    /// A head was refused: hyper answers [`REFUSED`], and closes.
    Refused,
    /// A body was refused: hyper gets an error after the bytes before it, which may be complete requests.
    Broken(Refused),
    /// The client has closed its sending side.
    Closed,
}

impl<IO> ValidatedStream<IO> {
    pub(crate) fn new(io: IO, limits: HeadLimits, clock: TokioClock, tracker: ReadTracker) -> Self {
        let (held, ready) = (Vec::new(), Vec::new());
        Self { io, guard: Http1Validator::new(limits), tracker, clock, held, ready, end: None, flushed: true }
    }

    /// Checks the bytes that have arrived, and leaves in `buf` those that hyper may read now.
    fn inspect(&mut self, buf: &mut ReadBuf<'_>, before: usize) {
        let came = buf.filled().get(before..).unwrap_or_default();
        let inspected = self.guard.inspect(came);
        let pass = match inspected {
            Ok(()) => self.guard.open_head().unwrap_or(came.len()),
            Err(Refused { in_head: true, .. }) => self.guard.head_at(),
            Err(Refused { at, .. }) => at,
        };
        match self.guard.open_head() {
            Some(_) => self.tracker.head_begins(self.clock.now()),
            None => self.tracker.head_ends(),
        }
        if pass > 0 && self.held.is_empty() && self.guard.unescaped().is_empty() {
            // The usual case: nothing is copied.
            self.held.extend_from_slice(came.get(pass..).unwrap_or_default());
            buf.set_filled(before + pass);
        } else {
            let before_these = self.held.len();
            self.held.extend_from_slice(came);
            buf.set_filled(before);
            let cut = if pass > 0 { before_these + pass } else { 0 };
            let rest = self.held.split_off(cut);
            let lines = self.guard.unescaped().iter().map(|(end, length)| (before_these + end, *length));
            self.ready = escape(&self.held, lines.clone().filter(|(end, _)| *end <= cut));
            let lines = lines.filter(|(end, _)| *end > cut).map(|(end, length)| (end - cut, length));
            self.held = escape(&rest, lines);
        }
        if let Err(refused) = inspected {
            self.held = Vec::new();
            self.end = Some(if refused.in_head { End::Refused } else { End::Broken(refused) });
            if refused.in_head {
                self.tracker.refuse(refused.violation);
                self.ready.extend_from_slice(REFUSED);
            }
        }
        self.tracker.head_takes(self.held.capacity() + self.guard.kept());
    }

    /// hyper begins to write. Until the client has taken it, a half-closed client does not count as gone: the kernel would
    /// report that.
    fn begins_to_write(&mut self) {
        if std::mem::replace(&mut self.flushed, false) && matches!(self.end, Some(End::Closed)) {
            self.tracker.takes_answer();
        }
    }

    /// Whether hyper still answers complete requests.
    fn is_answering(&self) -> bool {
        let complete = self.guard.phase() == FramingPhase::Between;
        complete && (!self.flushed || self.guard.requests() > self.tracker.ended())
    }
}

/// `bytes` with some request lines percent-encoded where hyper would reject them. `lines` has the end and the length of each.
fn escape(bytes: &[u8], lines: impl Iterator<Item = (usize, usize)>) -> Vec<u8> {
    let (mut escaped, mut at) = (Vec::with_capacity(bytes.len() + 64), 0);
    for (end, length) in lines {
        let begin = end.saturating_sub(length);
        escaped.extend_from_slice(bytes.get(at..begin).unwrap_or_default());
        for byte in bytes.get(begin..end).unwrap_or_default() {
            if needs_escape(*byte) {
                let digit = |four: u8| b"0123456789ABCDEF"[usize::from(four & 0xf)];
                escaped.extend_from_slice(&[b'%', digit(byte >> 4), digit(*byte)]);
            } else {
                escaped.push(*byte);
            }
        }
        at = end;
    }
    escaped.extend_from_slice(bytes.get(at..).unwrap_or_default());
    escaped
}

impl<IO: AsyncRead + Unpin> AsyncRead for ValidatedStream<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.ready.is_empty() {
                let rest = this.ready.split_off(this.ready.len().min(buf.remaining()));
                buf.put_slice(&std::mem::replace(&mut this.ready, rest));
                return Poll::Ready(Ok(()));
            }
            match this.end {
                None => {}
                // A client that half-closes still wants its responses: hyper would take this end for the end of the connection.
                Some(End::Closed) if this.is_answering() => return Poll::Pending,
                Some(End::Closed) => return Poll::Ready(Ok(())),
                Some(End::Refused) => return Poll::Pending,
                Some(End::Broken(refused)) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, refused)));
                }
            }
            if this.tracker.pauses_head(context) {
                return Poll::Pending;
            }
            let before = buf.filled().len();
            this.tracker.reads_into(buf.capacity());
            ready!(Pin::new(&mut this.io).poll_read(context, buf))?;
            if buf.filled().len() > before {
                this.inspect(buf, before);
                if buf.filled().len() > before {
                    return Poll::Ready(Ok(()));
                }
            } else if this.guard.phase() == FramingPhase::Opaque {
                // The tunnel handles the end.
                return Poll::Ready(Ok(()));
            } else {
                if this.flushed {
                    this.tracker.half_closes(this.clock.now());
                }
                this.end = Some(End::Closed);
            }
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for ValidatedStream<IO> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.begins_to_write();
        Pin::new(&mut this.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.begins_to_write();
        Pin::new(&mut this.io).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.io).poll_flush(context);
        if let Poll::Ready(Ok(())) = flushed
            && !std::mem::replace(&mut this.flushed, true)
            && matches!(this.end, Some(End::Closed))
        {
            this.tracker.half_closes(this.clock.now());
            // This may have been the last response: hyper has to read the end now.
            context.waker().wake_by_ref();
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use super::*;

    /// Gives one piece per read, and then has nothing for now.
    struct Pieces<'a>(VecDeque<&'a [u8]>);

    impl AsyncRead for Pieces<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let Some(piece) = self.0.pop_front() else { return Poll::Pending };
            let (now, rest) = piece.split_at(piece.len().min(buf.remaining()));
            buf.put_slice(now);
            if !rest.is_empty() {
                self.0.push_front(rest);
            }
            Poll::Ready(Ok(()))
        }
    }

    /// What hyper reads, with room for `room` bytes at a time.
    fn read(pieces: &[&[u8]], room: usize) -> String {
        let pieces = pieces.iter().filter(|piece| !piece.is_empty()).copied().collect();
        let mut guarded = ValidatedStream::new(
            Pieces(pieces),
            HeadLimits::default(),
            TokioClock::new(),
            ReadTracker::default(),
        );
        let mut seen = Vec::new();
        loop {
            let mut room = vec![0; room];
            let mut buf = ReadBuf::new(&mut room);
            match Pin::new(&mut guarded).poll_read(&mut Context::from_waker(Waker::noop()), &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => seen.extend_from_slice(buf.filled()),
                Poll::Pending => return String::from_utf8(seen).unwrap(),
                ended @ Poll::Ready(_) => panic!("{ended:?} after {}", String::from_utf8_lossy(&seen)),
            }
        }
    }

    #[tokio::test]
    async fn hyper_reads_complete_heads_however_the_bytes_are_cut() {
        let first = "\r\nPOST /\"<?` HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nX: \"<>\"\r\n\r\n\"<>\n";
        let second = "GET /` HTTP/1.1\r\nHost: a\r\n\r\n";
        let third = "GET /< HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n";
        let stream = [first, second, third, second].concat();
        let escaped = "\r\nPOST /%22%3C?%60 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nX: \"<>\"\r\n\r\n\"<>\n\
                       GET /%60 HTTP/1.1\r\nHost: a\r\n\r\n";
        let expected = format!("{escaped}{}", str::from_utf8(REFUSED).unwrap());
        for one in 0..=stream.len() {
            for two in (one..=stream.len()).step_by(7) {
                let (begin, rest) = stream.as_bytes().split_at(one);
                let (middle, end) = rest.split_at(two - one);
                for room in [1, 10, 1000] {
                    assert_eq!(
                        read(&[begin, middle, end], room),
                        expected,
                        "cut at {one} and {two}, {room} at a time"
                    );
                }
            }
        }
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
        assert_eq!(read(&pieces, 1000), expected);
        // The beginning of a head is kept back.
        assert_eq!(
            read(&[second.as_bytes(), b"GET / HTTP/1.1\r\nHost:"], 1000),
            "GET /%60 HTTP/1.1\r\nHost: a\r\n\r\n"
        );
    }
}
