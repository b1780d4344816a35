//! The frames of a request body that are kept, so that the body can be sent again.

use std::rc::Rc;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;

use crate::budget::{BodyBuffers, Reserved};

/// The most bytes of a body that are kept for another attempt.
const MAX_KEPT: usize = 64 * 1024;

/// The frames of a body that an attempt has taken, while another attempt may need them.
#[derive(Debug, Default)]
pub(super) struct ReplayBuffer {
    pub(super) on: bool,
    frames: Vec<Piece>,
    bytes: usize,
    /// Counts their bytes; `None` before the first frame.
    reserved: Option<Reserved>,
    /// How many of them the present attempt has taken.
    pub(super) replayed: usize,
}

#[derive(Debug, Clone)]
pub(super) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Piece {
    fn of(frame: &Frame<Bytes>) -> Option<Self> {
        let data = frame.data_ref().map(|data| Self::Data(data.clone()));
        data.or_else(|| frame.trailers_ref().map(|trailers| Self::Trailers(trailers.clone())))
    }

    fn frame(&self) -> Frame<Bytes> {
        match self {
            Piece::Data(data) => Frame::data(data.clone()),
            Piece::Trailers(trailers) => Frame::trailers(trailers.clone()),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Piece::Data(data) => data.len(),
            Piece::Trailers(_) => 0,
        }
    }
}

impl ReplayBuffer {
    pub(super) fn add(&mut self, frame: &Frame<Bytes>, buffers: &Rc<BodyBuffers>) {
        if let (true, Some(piece)) = (self.on, Piece::of(frame)) {
            // Includes its entry in the list: a body in tiny frames would take a hundred times its length.
            let bytes = piece.len() + size_of::<Piece>();
            self.bytes += bytes;
            self.frames.push(piece);
            self.replayed = self.frames.len();
            // While memory is short, a body is sent once only.
            let has_room = match &mut self.reserved {
                Some(reserved) => reserved.grow(bytes),
                none => {
                    *none = buffers.reserve(bytes);
                    none.is_some()
                }
            };
            if self.bytes > MAX_KEPT || !has_room {
                *self = Self::default();
            }
        }
    }

    /// The frames that the present attempt has not taken yet.
    pub(super) fn rest(&self) -> &[Piece] {
        self.frames.get(self.replayed..).unwrap_or_default()
    }

    pub(super) fn next(&mut self) -> Option<Frame<Bytes>> {
        let frame = self.rest().first().map(Piece::frame)?;
        self.replayed += 1;
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::budget::ByteBudget;

    #[test]
    fn a_body_in_tiny_frames_is_kept_no_longer_than_its_room_allows() {
        let buffers = BodyBuffers::new(&Arc::new(ByteBudget::new(1 << 20)), 1 << 20);
        let mut kept = ReplayBuffer { on: true, ..ReplayBuffer::default() };
        let mut most = 0;
        while kept.on {
            kept.add(&Frame::data(Bytes::from_static(b"x")), &buffers);
            most = most.max(kept.frames.len());
        }
        assert!(kept.frames.is_empty());
        assert!(most > 100 && most * size_of::<Piece>() <= MAX_KEPT, "{most} frames");
        let all = buffers.reserve((1 << 20) + 1);
        assert!(all.is_some(), "what is not kept any more does not count");
    }

    #[test]
    fn a_body_counts_while_it_is_kept_and_is_not_kept_while_memory_is_short() {
        let buffers = BodyBuffers::new(&Arc::new(ByteBudget::new(1 << 20)), 1 << 20);
        let frame = Frame::data(Bytes::from_static(&[0; 1024]));
        let mut kept = ReplayBuffer { on: true, ..ReplayBuffer::default() };
        kept.add(&frame, &buffers);
        assert!(kept.on && kept.reserved.is_some());
        let flood = buffers.reserve(2 << 20);
        kept.add(&frame, &buffers);
        assert!(!kept.on && kept.frames.is_empty() && kept.reserved.is_none());
        drop(flood);
        assert!(buffers.reserve(1).is_some());
    }
}
