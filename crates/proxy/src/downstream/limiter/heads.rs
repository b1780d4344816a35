//! Tracks what the reader of a client connection sees: incomplete heads, half-closed clients, refused heads.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Waker};

use rouse_core::time::Moment;

use crate::budget::LONG_HEAD;
use crate::client::ReaderCounters;
use crate::downstream::http1_validator::Violation;

/// What the reader of a connection reports to the connection limiter and to requests. hyper may move the reader between
/// threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadTracker(Arc<Tracked>);

#[derive(Debug, Default)]
struct Tracked {
    /// Since when the head of a request is incomplete.
    head: Since,
    /// Since when the client's sending side is closed and nothing was sent to it.
    half_closed: Since,
    counters: Arc<ReaderCounters>,
    /// The bytes of an incomplete head.
    head_bytes: AtomicUsize,
    /// The incomplete heads of all connections of the worker.
    heads: Arc<IncompleteHeads>,
    /// Why the last head was refused.
    refused: OnceLock<Violation>,
}

/// A moment, or none.
#[derive(Debug, Default)]
struct Since(AtomicU64);

impl Since {
    fn set(&self, now: Moment) {
        if self.0.load(Ordering::Relaxed) == 0 {
            // Never 0, which means "none".
            self.0.store(now.as_nanos().max(1), Ordering::Relaxed);
        }
    }

    fn unset(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    fn get(&self) -> Option<Moment> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            since => Some(Moment::from_nanos(since)),
        }
    }
}

impl ReadTracker {
    /// For a connection whose incomplete heads are counted in `heads`.
    pub(super) fn new(heads: &Arc<IncompleteHeads>, counters: &Arc<ReaderCounters>) -> Self {
        Self(Arc::new(Tracked {
            head: Since::default(),
            half_closed: Since::default(),
            counters: Arc::clone(counters),
            head_bytes: AtomicUsize::new(0),
            heads: Arc::clone(heads),
            refused: OnceLock::new(),
        }))
    }

    /// A head has begun.
    pub(crate) fn head_begins(&self, now: Moment) {
        self.0.head.set(now);
    }

    /// The head is complete, or there is none.
    pub(crate) fn head_ends(&self) {
        self.0.head.unset();
    }

    /// Since when the head of the next request is incomplete.
    pub(super) fn head_since(&self) -> Option<Moment> {
        self.0.head.get()
    }

    /// Since when a long head is incomplete. `None` if the head is short, or began after `before`.
    pub(super) fn long_head_since(&self, before: Moment) -> Option<Moment> {
        let is_long = self.0.head_bytes.load(Ordering::Relaxed) > LONG_HEAD;
        self.head_since().filter(|since| is_long && *since <= before)
    }

    /// The client has closed its sending side, and has taken all that was sent to it so far.
    pub(crate) fn half_closes(&self, now: Moment) {
        self.0.half_closed.set(now);
    }

    /// Something is being sent to a client that has closed its sending side.
    pub(crate) fn takes_answer(&self) {
        self.0.half_closed.unset();
    }

    /// Since when the client's sending side is closed and nothing was sent to it.
    pub(super) fn half_closed_since(&self) -> Option<Moment> {
        self.0.half_closed.get()
    }

    /// How many requests have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.0.counters.ended.load(Ordering::Relaxed)
    }

    /// hyper reads into a buffer of this capacity.
    pub(crate) fn reads_into(&self, capacity: usize) {
        self.0.counters.buffer.store(capacity, Ordering::Relaxed);
    }

    /// Sets how many bytes an incomplete head takes.
    pub(crate) fn head_takes(&self, bytes: usize) {
        let before = self.0.head_bytes.swap(bytes, Ordering::Relaxed);
        if bytes != before {
            // A difference below zero wraps around, and so does the sum.
            self.0.heads.bytes.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Whether reading a long head must pause. If so, the task of `context` is woken when it may go on.
    pub(crate) fn pauses_head(&self, context: &Context<'_>) -> bool {
        let waits = self.0.head_bytes.load(Ordering::Relaxed) > LONG_HEAD && self.0.heads.are_full();
        if waits {
            let mut paused = self.0.heads.paused.lock().unwrap_or_else(PoisonError::into_inner);
            paused.push(context.waker().clone());
        }
        waits
    }

    /// A head is refused, and nothing more is read.
    pub(crate) fn refuse(&self, violation: Violation) {
        self.0.refused.set(violation).ok();
    }

    /// Why the last head was refused.
    pub(crate) fn refused(&self) -> Option<Violation> {
        self.0.refused.get().copied()
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.heads.bytes.fetch_sub(*self.head_bytes.get_mut(), Ordering::Relaxed);
    }
}

/// The incomplete heads of all connections of a worker. While they take too many bytes, long ones are not read further.
#[derive(Debug, Default)]
pub(super) struct IncompleteHeads {
    bytes: AtomicUsize,
    most: usize,
    /// Connections that wait to read on.
    paused: Mutex<Vec<Waker>>,
}

impl IncompleteHeads {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, ..Self::default() })
    }

    pub(super) fn are_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.most
    }

    /// The connections that wait to read on.
    pub(super) fn take_paused(&self) -> Vec<Waker> {
        std::mem::take(&mut *self.paused.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
