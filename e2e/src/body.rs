//! HTTP bodies for tests: empty, of known length, fed through a channel, or generated from the pattern.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use tokio::sync::mpsc;

use crate::{Error, pattern};

/// Any body.
pub type Body = UnsyncBoxBody<Bytes, Error>;

/// A body without data.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// A body of known length.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A body that the test feeds. It buffers one frame at most, so that feeding waits while the body is not read.
pub fn channel() -> (Feed, Body) {
    let (feed, frames) = mpsc::channel(1);
    (Feed(feed), Channel(frames).boxed_unsync())
}

/// Feeds a body; dropping it ends the body.
#[derive(Debug, Clone)]
pub struct Feed(mpsc::Sender<Result<Frame<Bytes>, Error>>);

/// The reader of the body is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread;

impl Feed {
    /// Sends more of the body.
    pub async fn data(&self, bytes: impl Into<Bytes>) -> Result<(), Unread> {
        self.frame(Frame::data(bytes.into())).await
    }

    /// Sends the trailers.
    pub async fn trailers(&self, trailers: HeaderMap) -> Result<(), Unread> {
        self.frame(Frame::trailers(trailers)).await
    }

    /// Sends a frame unchanged.
    pub async fn frame(&self, frame: Frame<Bytes>) -> Result<(), Unread> {
        self.0.send(Ok(frame)).await.map_err(|_| Unread)
    }

    /// Ends the body with an error: the connection is closed or the stream is reset.
    pub async fn abort(self, why: &str) -> Result<(), Unread> {
        self.0.send(Err(why.into())).await.map_err(|_| Unread)
    }

    /// Waits until the reader of the body is gone.
    pub async fn unread(&self) {
        self.0.closed().await;
    }
}

struct Channel(mpsc::Receiver<Result<Frame<Bytes>, Error>>);

impl http_body::Body for Channel {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        self.0.poll_recv(context)
    }
}

/// `len` bytes of the [`pattern`], with a known length. Calls `sent` with the size of each part that is read.
pub fn patterned(len: u64, sent: impl FnMut(u64) + Send + Unpin + 'static) -> Body {
    Patterned { offset: 0, len, sent }.boxed_unsync()
}

struct Patterned<F> {
    offset: u64,
    len: u64,
    sent: F,
}

impl<F: FnMut(u64) + Unpin> http_body::Body for Patterned<F> {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.offset == self.len {
            return Poll::Ready(None);
        }
        let bytes = pattern::at(self.offset, self.len - self.offset);
        let count = bytes.len() as u64;
        self.offset += count;
        (self.sent)(count);
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.len - self.offset)
    }

    fn is_end_stream(&self) -> bool {
        self.offset == self.len
    }
}
