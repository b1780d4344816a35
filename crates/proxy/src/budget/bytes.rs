//! Limits memory: bytes of bodies in hyper's buffers, long heads, and bodies that are kept for a retry.
//!
//! Every data frame that is handed to hyper is a [`Charged`] buffer: it counts from then on until hyper has written or
//! dropped it. A body gets no further frames while its client connection, or the whole gateway, is over its budget. Back-pressure
//! alone would let stalled clients stop the others, so the connection limiter closes the longest-stalled connections
//! while the gateway is over budget.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::task::{Context, Waker};

use bytes::{Buf, Bytes};
use send_wrapper::SendWrapper;
use slab::Slab;

use crate::client::ClientState;

/// The memory behind a body that does not move, beside its frames: read buffers, and frames on their way from hyper.
const BEHIND: usize = 96 * 1024;
/// A worker updates the gateway's count in steps of this size: an atomic operation per frame would be too many.
const BATCH: isize = 256 * 1024;

/// The budget of the whole gateway: one part for bodies on their way, and as much again for reserved bytes.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    most: usize,
    bodies: AtomicIsize,
    reserved: AtomicIsize,
}

impl ByteBudget {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, bodies: AtomicIsize::new(0), reserved: AtomicIsize::new(0) }
    }
}

/// What one worker uses of a count that all workers share.
#[derive(Debug, Default)]
struct Usage {
    own: Cell<usize>,
    /// The part of it that the shared count does not have yet.
    unpublished: Cell<isize>,
}

impl Usage {
    fn add(&self, bytes: usize, all: &AtomicIsize) {
        self.own.set(self.own.get() + bytes);
        self.publish(isize::try_from(bytes).unwrap_or(isize::MAX), all);
    }

    fn subtract(&self, bytes: usize, all: &AtomicIsize) {
        self.own.set(self.own.get().saturating_sub(bytes));
        self.publish(-isize::try_from(bytes).unwrap_or(isize::MAX), all);
    }

    fn publish(&self, change: isize, all: &AtomicIsize) {
        let unpublished = self.unpublished.get() + change;
        if unpublished.abs() < BATCH {
            return self.unpublished.set(unpublished);
        }
        self.unpublished.set(0);
        all.fetch_add(unpublished, Ordering::Relaxed);
    }

    /// What all workers use.
    fn total(&self, all: &AtomicIsize) -> usize {
        let total = all.load(Ordering::Relaxed).saturating_add(self.unpublished.get());
        usize::try_from(total).unwrap_or(0)
    }
}

/// The bodies of one worker, and what hyper holds of them.
pub(crate) struct BodyBuffers {
    budget: Arc<ByteBudget>,
    per_connection: usize,
    bodies: Usage,
    reserved: Usage,
    accounts: RefCell<Slab<Account>>,
}

struct Account {
    client: Rc<ClientState>,
    bytes: usize,
    /// Whether more frames may follow.
    open: bool,
    /// The task that waits for permission to hand more to hyper.
    waker: Option<Waker>,
}

impl BodyBuffers {
    pub(crate) fn new(budget: &Arc<ByteBudget>, per_connection: usize) -> Rc<Self> {
        Rc::new(Self {
            budget: Arc::clone(budget),
            per_connection,
            bodies: Usage::default(),
            reserved: Usage::default(),
            accounts: RefCell::default(),
        })
    }

    /// An account for a body that comes from or goes to `client`.
    pub(crate) fn open(self: &Rc<Self>, client: &Rc<ClientState>) -> BodyAccount {
        let account = Account { client: Rc::clone(client), bytes: 0, open: true, waker: None };
        BodyAccount { buffers: Rc::clone(self), key: self.accounts.borrow_mut().insert(account) }
    }

    /// How many bytes the bodies of this worker take.
    pub(crate) fn own(&self) -> usize {
        self.bodies.own.get()
    }

    /// Reserves room for bytes that do not wait for a client or a pod: a long head, a body that is kept for another attempt.
    /// `None` while the gateway has reserved all of its budget.
    pub(crate) fn reserve(self: &Rc<Self>, bytes: usize) -> Option<Reserved> {
        let mut reserved = Reserved { buffers: Rc::clone(self), bytes: 0 };
        reserved.grow(bytes).then_some(reserved)
    }

    /// Whether memory is so short that requests are rejected.
    pub(crate) fn are_short(&self) -> bool {
        self.is_overrun() || self.is_all_reserved()
    }

    fn is_all_reserved(&self) -> bool {
        self.reserved.total(&self.budget.reserved) > self.budget.most
    }

    /// This worker's part of the bytes by which the gateway is over its budget.
    pub(crate) fn excess(&self) -> usize {
        let used = self.used();
        let over = used.saturating_sub(self.budget.most);
        if over == 0 { 0 } else { (over as u128 * self.own() as u128 / used.max(1) as u128) as usize }
    }

    /// Whether the gateway is so far over its budget that also clients that make progress are closed.
    pub(crate) fn is_overrun(&self) -> bool {
        self.used() > self.budget.most.saturating_add(self.budget.most / 4)
    }

    /// Whether the gateway is over its budget.
    pub(crate) fn is_over(&self) -> bool {
        self.used() > self.budget.most
    }

    /// What the whole gateway uses.
    fn used(&self) -> usize {
        self.bodies.total(&self.budget.bodies)
    }

    /// Wakes all waiting tasks: another worker may have freed what they wait for.
    pub(crate) fn wake(&self) {
        let mut accounts = self.accounts.borrow_mut();
        let wakers: Vec<Waker> =
            accounts.iter_mut().filter_map(|(_, account)| account.waker.take()).collect();
        drop(accounts);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn may_pull(&self, key: usize, context: &Context<'_>) -> bool {
        let mut accounts = self.accounts.borrow_mut();
        let Some(account) = accounts.get_mut(key) else { return true };
        let connection = account.client.buffered();
        let may = if connection == 0 {
            true
        } else if self.is_over() {
            false
        } else {
            // At least one frame of each stream: streams that are not read must not stop the others.
            account.bytes == 0 || connection < self.per_connection
        };
        if !may {
            account.waker = Some(context.waker().clone());
        }
        may
    }

    fn charge(&self, key: usize, bytes: usize) {
        let mut accounts = self.accounts.borrow_mut();
        let Some(account) = accounts.get_mut(key) else { return };
        let cost = bytes + if account.bytes == 0 { BEHIND } else { 0 };
        account.bytes += bytes;
        account.client.add_buffered(cost);
        drop(accounts);
        self.bodies.add(cost, &self.budget.bodies);
    }

    fn release(&self, key: usize, bytes: usize) {
        let mut accounts = self.accounts.borrow_mut();
        let Some(account) = accounts.get_mut(key) else { return };
        account.bytes = account.bytes.saturating_sub(bytes);
        let is_empty = account.bytes == 0;
        let cost = bytes + if is_empty { BEHIND } else { 0 };
        account.client.remove_buffered(cost, bytes);
        let may_go_on = is_empty || account.client.buffered() < self.per_connection;
        let waker = if may_go_on { account.waker.take() } else { None };
        if is_empty && !account.open {
            accounts.remove(key);
        }
        drop(accounts);
        self.bodies.subtract(cost, &self.budget.bodies);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn close(&self, key: usize) {
        let mut accounts = self.accounts.borrow_mut();
        let Some(account) = accounts.get_mut(key) else { return };
        account.open = false;
        account.waker = None;
        if account.bytes == 0 {
            accounts.remove(key);
        }
    }
}

impl fmt::Debug for BodyBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyBuffers").field("bodies", &self.bodies).finish_non_exhaustive()
    }
}

/// Bytes that count against the gateway's budget until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    buffers: Rc<BodyBuffers>,
    bytes: usize,
}

impl Reserved {
    /// Reserves `bytes` more. Returns whether there is room for them.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        if bytes > 0 && self.buffers.is_all_reserved() {
            return false;
        }
        self.bytes += bytes;
        self.buffers.reserved.add(bytes, &self.buffers.budget.reserved);
        true
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.buffers.reserved.subtract(self.bytes, &self.buffers.budget.reserved);
    }
}

/// The account of one body. After it is dropped, no more frames follow.
#[derive(Debug)]
pub(crate) struct BodyAccount {
    buffers: Rc<BodyBuffers>,
    key: usize,
}

impl BodyAccount {
    /// Whether the body may hand another frame to hyper. If not, the task is woken when it may.
    pub(crate) fn may_pull(&self, context: &Context<'_>) -> bool {
        self.buffers.may_pull(self.key, context)
    }

    /// The bytes as hyper gets them.
    pub(crate) fn charge(&self, bytes: Bytes) -> Charged {
        if bytes.is_empty() {
            return Charged::free(bytes);
        }
        self.buffers.charge(self.key, bytes.len());
        Charged { bytes, account: Some(SendWrapper::new((Rc::clone(&self.buffers), self.key))) }
    }
}

impl Drop for BodyAccount {
    fn drop(&mut self) {
        self.buffers.close(self.key);
    }
}

/// Bytes that count until they are written or dropped.
#[derive(Debug)]
pub(crate) struct Charged {
    bytes: Bytes,
    /// hyper's HTTP/2 client requires bytes that can change threads; its tasks stay on the worker's thread.
    account: Option<SendWrapper<(Rc<BodyBuffers>, usize)>>,
}

impl Charged {
    /// Bytes that do not count: the gateway's own texts, which are short.
    pub(crate) fn free(bytes: Bytes) -> Self {
        Self { bytes, account: None }
    }

    fn release(&self, bytes: usize) {
        if let Some(account) = self.account.as_ref().filter(|_| bytes > 0) {
            let (buffers, key) = &**account;
            buffers.release(*key, bytes);
        }
    }
}

impl Buf for Charged {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.release(count);
    }

    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        let bytes = self.bytes.copy_to_bytes(length);
        self.release(length);
        bytes
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.release(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use rouse_net::clock::TokioClock;

    use super::*;

    const FRAME: usize = 16 * 1024;

    fn buffers(most: usize, per_connection: usize) -> Rc<BodyBuffers> {
        BodyBuffers::new(&Arc::new(ByteBudget::new(most)), per_connection)
    }

    fn connection() -> Rc<ClientState> {
        ClientState::new(TokioClock::new())
    }

    fn may_pull(account: &BodyAccount) -> bool {
        account.may_pull(&Context::from_waker(Waker::noop()))
    }

    fn frame(account: &BodyAccount) -> Charged {
        account.charge(Bytes::from_static(&[0; FRAME]))
    }

    #[tokio::test]
    async fn a_connection_over_its_budget_gets_one_frame_of_each_body_and_another_connection_is_not_concerned()
     {
        let buffers = buffers(64 << 20, 256 * 1024);
        let (greedy, other) = (connection(), connection());
        let account = buffers.open(&greedy);
        let mut frames = Vec::new();
        while may_pull(&account) {
            frames.push(frame(&account));
            assert!(frames.len() < 100, "it has no bound");
        }
        let second = buffers.open(&greedy);
        assert!(may_pull(&second), "a body that is not read must not stop the others");
        let first_of_second = frame(&second);
        assert!(!may_pull(&second));
        let others = buffers.open(&other);
        assert!(may_pull(&others) && !may_pull(&account));
        drop((frames, first_of_second));
        assert!(may_pull(&account) && may_pull(&second));
        assert_eq!((buffers.own(), greedy.buffered()), (0, 0));
    }

    #[tokio::test]
    async fn while_the_gateway_is_over_its_budget_only_connections_that_have_taken_everything_get_more() {
        let buffers = buffers(1 << 20, 1 << 20);
        let (slow, quick, greedy) = (connection(), connection(), connection());
        let first = buffers.open(&slow);
        let waiting = frame(&first);
        let flood = buffers.open(&greedy).charge(Bytes::from(vec![0; 2 << 20]));
        assert!(buffers.is_over() && buffers.is_overrun() && buffers.are_short());
        let (new_of_slow, new_of_quick) = (buffers.open(&slow), buffers.open(&quick));
        assert!(!may_pull(&first) && !may_pull(&new_of_slow), "also not the first frame of a body");
        assert!(may_pull(&new_of_quick));
        drop(flood);
        assert!(may_pull(&first) && may_pull(&new_of_slow));
        drop(waiting);
        assert_eq!(buffers.own(), 0);
    }

    #[tokio::test]
    async fn reserved_bytes_have_a_limit_of_their_own_and_stop_no_body() {
        let buffers = buffers(1 << 20, 1 << 20);
        let flood = buffers.reserve(2 << 20).expect("nothing is reserved yet");
        assert!(buffers.reserve(1).is_none() && buffers.are_short());
        assert!(!buffers.is_over(), "bodies have a budget of their own");
        assert!(buffers.reserve(0).is_some());
        drop(flood);
        assert!(buffers.reserve(1).is_some() && !buffers.are_short());
    }
}
