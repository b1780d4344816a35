//! Limits client connections, and closes idle or stalled ones when the limit is reached.
//!
//! When a worker has as many as it may have, the connection that has been quiet for the longest makes room, then the one whose
//! request body has not come for the longest, then the one that has not read for the longest. When all of them are at work, new
//! connections stay in the kernel's queue for a moment ([`Crowd::room`]); after that they are turned away.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use rouse_core::drain::{UnderWay, Work};
use rouse_core::time::{Clock as _, Moment};
use rouse_net::clock::TokioClock;
use slab::Slab;
use tokio::sync::Notify;

use crate::deadline::Deadlines;
use crate::gateway::Limits;
use crate::guard::Violation;

/// How long the runtime may take to hear of what a client has sent.
const HEARD: Duration = Duration::from_millis(100);
/// A connection that takes fewer bytes than this in [`STALL`] is stalled: a byte now and then must not keep buffers for ever.
const PROGRESS: u64 = 4 * 1024;
/// How long a client, or the pods for it, may take nothing while there is too little memory or too few descriptors.
const STALL: Duration = Duration::from_secs(1);
/// A client gets this long for the first bytes of its first request before its connection may be closed for another: the request
/// may be on its way.
const NEW: Duration = Duration::from_millis(250);
/// How long new connections wait for a place. More than [`STALL`], so that a burst of clients that do not read makes room in time.
const PATIENCE: Duration = Duration::from_secs(5);
/// A head of more bytes than these is long: while memory is short, it must come quickly.
pub(crate) const LONG_HEAD: usize = 8 * 1024;
/// How often to look whether there is a place.
const LOOK: Duration = Duration::from_millis(20);

/// The connections of one worker.
#[derive(Debug)]
pub(crate) struct Crowd {
    clock: TokioClock,
    limits: Limits,
    /// Of all that are allowed, the share of this worker.
    most: usize,
    members: RefCell<Slab<Rc<Member>>>,
    /// Since when there is no place for a new connection.
    full_since: Cell<Option<Moment>>,
    heads: Arc<Heads>,
    /// Where connections are counted since we began to leave.
    leaving: RefCell<Option<Arc<UnderWay>>>,
}

/// How a connection is closed to make room for another.
enum Eviction {
    /// It has nothing under way.
    Quiet,
    /// The bodies of its requests do not come.
    BodyStopped,
    /// It does not read what waits for it.
    Unread,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Member {
    /// Requests under way.
    requests: Cell<usize>,
    /// Whether it has ever had one.
    known: Cell<bool>,
    /// Since when there is none.
    quiet: Cell<Moment>,
    tracker: Tracker,
    /// Requests whose bodies do not come.
    stalled: Cell<usize>,
    /// Since when the last of these does not.
    stalled_since: Cell<Moment>,
    leaving: Cell<bool>,
    /// It has to go whatever is under way.
    evicted: Cell<bool>,
    /// And at once: nothing that waits in its buffers gets out.
    cut: Cell<bool>,
    unsent_bytes: Unsent,
    /// Requests that are at pods.
    turns: Cell<usize>,
    /// HTTP/1 connections to pods that they use.
    lines: Cell<usize>,
    /// Told when one of them comes back.
    turn_free: Notify,
    leave: Notify,
    /// Where it is counted since we began to leave.
    drain: RefCell<Option<Arc<UnderWay>>>,
    /// It has no request, but hyper may still hold the end of an answer that its client has not taken: it is under way
    /// until the connection ends.
    unsent: RefCell<Option<Work>>,
}

/// What waits in hyper's buffers for a client that does not read, or for pods that do not take its bodies.
#[derive(Debug, Default)]
struct Unsent {
    /// How much, with what stands behind it.
    cost: Cell<usize>,
    /// How many bytes have been taken so far.
    taken: Cell<u64>,
    /// How many there were when it last moved, as of the last look.
    seen: Cell<u64>,
    /// Since when it does not move.
    since: Cell<Option<Moment>>,
}

impl Unsent {
    /// Looks whether anything has moved.
    fn look(&self, now: Moment) {
        if self.cost.get() == 0 {
            return self.since.set(None);
        }
        if self.since.get().is_none() || self.taken.get() - self.seen.get() >= PROGRESS {
            self.seen.set(self.taken.get());
            self.since.set(Some(now));
        }
    }

    /// Since when it does not move, if that is long enough.
    fn stalled(&self, before: Moment) -> Option<Moment> {
        self.since.get().filter(|since| *since <= before && self.taken.get() - self.seen.get() < PROGRESS)
    }
}

/// What the reader of a connection and its requests tell each other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tracker(Arc<Tracked>);

#[derive(Debug, Default)]
struct Tracked {
    /// Since when the head of a request is incomplete.
    head: Since,
    /// Since when the client's sending side is closed and nothing was sent to it.
    half_closed: Since,
    /// Requests that have ended.
    ended: AtomicU64,
    /// The room of the buffer that hyper last read into.
    buffer: AtomicUsize,
    /// What an incomplete head takes up.
    head_bytes: AtomicUsize,
    /// Those of all connections of the worker.
    heads: Arc<Heads>,
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

impl Tracker {
    /// For one of the connections whose incomplete heads are counted in `heads`.
    pub(crate) fn new(heads: &Arc<Heads>) -> Self {
        Self(Arc::new(Tracked {
            head: Since::default(),
            half_closed: Since::default(),
            ended: AtomicU64::new(0),
            buffer: AtomicUsize::new(0),
            head_bytes: AtomicUsize::new(0),
            heads: Arc::clone(heads),
            refused: OnceLock::new(),
        }))
    }

    /// A head has begun.
    pub(crate) fn head_begins(&self, now: Moment) {
        self.0.head.set(now);
    }

    /// It is complete, or there is none.
    pub(crate) fn head_ends(&self) {
        self.0.head.unset();
    }

    /// The client has closed its sending side, and has taken all that was sent to it so far.
    pub(crate) fn half_closes(&self, now: Moment) {
        self.0.half_closed.set(now);
    }

    /// Something is being sent to a client that has closed its sending side.
    pub(crate) fn takes_answer(&self) {
        self.0.half_closed.unset();
    }

    /// How many requests have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.0.ended.load(Ordering::Relaxed)
    }

    /// hyper reads into a buffer with this much room.
    pub(crate) fn reads_into(&self, room: usize) {
        self.0.buffer.store(room, Ordering::Relaxed);
    }

    /// An incomplete head takes up so many bytes.
    pub(crate) fn head_takes(&self, bytes: usize) {
        let before = self.0.head_bytes.swap(bytes, Ordering::Relaxed);
        if bytes != before {
            // A difference below zero wraps around, and so does the sum.
            self.0.heads.bytes.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Whether more of a long head must wait. If so, the task of `context` is woken when it may be read.
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
}

/// The incomplete heads of a worker's connections. While they take up too much, long ones are not read further.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    bytes: AtomicUsize,
    most: usize,
    /// Connections that wait to read on.
    paused: Mutex<Vec<Waker>>,
}

impl Heads {
    fn are_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.most
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.heads.bytes.fetch_sub(*self.head_bytes.get_mut(), Ordering::Relaxed);
    }
}

/// A place in the crowd. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Seat {
    crowd: Rc<Crowd>,
    place: usize,
    pub(crate) member: Rc<Member>,
}

impl Crowd {
    /// For one of `workers`.
    pub(crate) fn new(clock: TokioClock, limits: Limits, workers: usize) -> Rc<Self> {
        let most = limits.connections.div_ceil(workers.max(1)).max(1);
        Rc::new(Self {
            clock,
            limits,
            most,
            members: RefCell::default(),
            full_since: Cell::default(),
            // Half of what bodies may take up.
            heads: Arc::new(Heads { most: limits.buffers / 2 / workers.max(1), ..Heads::default() }),
            leaving: RefCell::default(),
        })
    }

    /// Waits until there is a place for a new connection, but not for ever: then it is for [`Crowd::enter`] to turn it away. The
    /// caller leaves new connections in the kernel's queue meanwhile.
    pub(crate) async fn room(&self) {
        loop {
            let now = self.clock.now();
            if self.has_room() {
                return self.full_since.set(None);
            }
            let since = self.full_since.get().unwrap_or(now);
            self.full_since.set(Some(since));
            if now >= since + PATIENCE {
                return;
            }
            self.clock.sleep_until(now + LOOK).await;
        }
    }

    fn has_room(&self) -> bool {
        let members = self.members.borrow();
        !self.is_full(&members) || self.evictable(&members).is_some()
    }

    fn is_full(&self, members: &Slab<Rc<Member>>) -> bool {
        let leaving = || members.iter().filter(|(_, member)| member.leaving.get()).count();
        members.len() >= self.most && members.len() - leaving() >= self.most
    }

    /// The connection that another one may take the place of.
    fn evictable<'m>(&self, members: &'m Slab<Rc<Member>>) -> Option<(&'m Rc<Member>, Eviction)> {
        self.longest_quiet(members)
            .map(|member| (member, Eviction::Quiet))
            .or_else(|| self.longest_stopped(members).map(|member| (member, Eviction::BodyStopped)))
            .or_else(|| self.longest_stalled(members, STALL).map(|member| (member, Eviction::Unread)))
    }

    /// The connection that has had nothing under way for the longest. Those that have never asked go first; while all of these are
    /// new, none that has asked goes in their place.
    fn longest_quiet<'m>(&self, members: &'m Slab<Rc<Member>>) -> Option<&'m Rc<Member>> {
        let now = self.clock.now();
        let is_new = |member: &Member| !member.known.get() && member.quiet.get() + NEW > now;
        let quiet = members.iter().map(|(_, member)| member).filter(|member| member.is_quiet());
        quiet.min_by_key(|member| (member.known.get(), member.quiet.get())).filter(|member| !is_new(member))
    }

    /// The connection whose request bodies have not come for the longest.
    fn longest_stopped<'m>(&self, members: &'m Slab<Rc<Member>>) -> Option<&'m Rc<Member>> {
        let before = self.clock.now() - self.limits.head;
        let stopped = members.iter().map(|(_, member)| member).filter(|member| member.has_stalled(before));
        stopped.min_by_key(|member| member.stalled_since.get())
    }

    /// A newcomer; `None` if there is no room for it.
    pub(crate) fn enter(self: &Rc<Self>) -> Option<Seat> {
        let mut members = self.members.borrow_mut();
        if self.is_full(&members) {
            let (member, eviction) = self.evictable(&members)?;
            member.evict(&eviction);
        }
        self.full_since.set(None);
        let member = Rc::new(Member {
            requests: Cell::new(0),
            known: Cell::new(false),
            quiet: Cell::new(self.clock.now()),
            tracker: Tracker::new(&self.heads),
            stalled: Cell::new(0),
            stalled_since: Cell::new(Moment::ZERO),
            leaving: Cell::new(false),
            evicted: Cell::new(false),
            cut: Cell::new(false),
            unsent_bytes: Unsent::default(),
            turns: Cell::new(0),
            lines: Cell::new(0),
            turn_free: Notify::new(),
            leave: Notify::new(),
            drain: RefCell::default(),
            unsent: RefCell::default(),
        });
        if let Some(under_way) = &*self.leaving.borrow() {
            member.drain(under_way);
        }
        let place = members.insert(Rc::clone(&member));
        Some(Seat { crowd: Rc::clone(self), place, member })
    }
}

impl Crowd {
    /// Lets long heads be read again if there is room. If not, closes the connections whose heads have been incomplete for the
    /// longest. Answers how many. To be called often.
    pub(crate) fn relieve_heads(&self) -> usize {
        let paused = std::mem::take(&mut *self.heads.paused.lock().unwrap_or_else(PoisonError::into_inner));
        let mut closed = 0;
        if self.heads.are_full() {
            let before = self.clock.now() - STALL;
            let members = self.members.borrow();
            let stalled = members.iter().map(|(_, member)| member).filter(|member| !member.cut.get());
            let mut stalled: Vec<_> =
                stalled.filter_map(|member| Some((member.head_stalled(before)?, member))).collect();
            stalled.sort_by_key(|(since, _)| *since);
            // Half of them, so that the other half is given a moment more.
            closed = stalled.len().div_ceil(2);
            stalled.iter().take(closed).for_each(|(_, member)| member.cut());
        }
        paused.into_iter().for_each(Waker::wake);
        closed
    }

    /// How many connections there are.
    pub(crate) fn len(&self) -> usize {
        self.members.borrow().len()
    }

    /// Looks who takes what waits for it. To be called often.
    pub(crate) fn look(&self) {
        let now = self.clock.now();
        self.members.borrow().iter().for_each(|(_, member)| member.unsent_bytes.look(now));
    }

    /// The connection that has not read for the longest, if that is at least as long as this.
    fn longest_stalled<'m>(
        &self,
        members: &'m Slab<Rc<Member>>,
        at_least: Duration,
    ) -> Option<&'m Rc<Member>> {
        let before = self.clock.now() - at_least;
        let stalled =
            |member: &&Rc<Member>| member.unsent_bytes.stalled(before).filter(|_| !member.cut.get());
        members
            .iter()
            .map(|(_, member)| member)
            .filter(|member| stalled(member).is_some())
            .min_by_key(stalled)
    }

    /// Closes the connection that has stalled for the longest. Answers how much that frees.
    pub(crate) fn cut_longest_stalled(&self) -> Option<usize> {
        let members = self.members.borrow();
        let member = self.longest_stalled(&members, STALL)?;
        member.cut();
        Some(member.buffered())
    }

    /// Closes the connection whose request bodies have not come for the longest.
    pub(crate) fn cut_longest_stopped(&self) -> bool {
        let members = self.members.borrow();
        let stopped = self.longest_stopped(&members);
        stopped.inspect(|member| member.cut()).is_some()
    }

    /// The same when there is no time to lose: the connection that has not read for the longest, however short that is; if all
    /// read, the one that has most in our buffers.
    pub(crate) fn cut_at_once(&self) -> Option<usize> {
        let members = self.members.borrow();
        let able = members.iter().map(|(_, member)| member).filter(|member| !member.cut.get());
        let largest = || able.max_by_key(|member| member.buffered()).filter(|member| member.buffered() > 0);
        let member = self.longest_stalled(&members, Duration::ZERO).or_else(largest)?;
        member.cut();
        Some(member.buffered())
    }

    /// Closes the connection that has been quiet for the longest.
    pub(crate) fn close_longest_quiet(&self) -> bool {
        let members = self.members.borrow();
        let quiet = self.longest_quiet(&members);
        quiet.inspect(|member| member.evict(&Eviction::Quiet)).is_some()
    }

    /// We begin to leave: from now on every connection counts as under way until it ends.
    pub(crate) fn drain(&self, under_way: &Arc<UnderWay>) {
        *self.leaving.borrow_mut() = Some(Arc::clone(under_way));
        self.members.borrow().iter().for_each(|(_, member)| member.drain(under_way));
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.member.drain.borrow_mut().take();
        self.member.unsent.borrow_mut().take();
        self.crowd.members.borrow_mut().try_remove(self.place);
    }
}

impl Seat {
    /// Ends when the connection has been quiet for too long, or has to make room. `unread` is whether the client has sent
    /// what nobody has read yet.
    pub(crate) async fn outstayed(&self, deadlines: &Rc<Deadlines>, unread: impl Fn() -> bool) {
        tokio::select! {
            () = self.member.leave.notified() => {}
            () = self.silence(deadlines, unread) => {}
        }
    }

    async fn silence(&self, deadlines: &Rc<Deadlines>, unread: impl Fn() -> bool) {
        let (limits, member) = (&self.crowd.limits, &self.member);
        let mut spared = None;
        loop {
            if member.evicted.get() {
                return;
            }
            let now = self.crowd.clock.now();
            // Whoever has to make room and has nothing under way does so now: its seat is given away already.
            let patience = if member.leaving.get() { Duration::ZERO } else { limits.idle };
            let quiet = (member.requests.get() == 0).then(|| member.quiet.get() + patience);
            // While a request is under way, the next head is incomplete because it is not read.
            let head = member.tracker.0.head.get().filter(|_| member.requests.get() == 0);
            let head = head.map(|since| since.max(member.quiet.get()) + limits.head);
            let half_closed = member.tracker.0.half_closed.get().map(|since| since + limits.half_closed);
            if half_closed.is_some_and(|due| due <= now) {
                member.evicted.set(true);
                return;
            }
            match quiet.into_iter().chain(head).chain(half_closed).min() {
                // A process that was stopped hears of the time before it hears of its sockets: a request that came
                // meanwhile would be lost. Once only: a client must not buy time with bytes.
                Some(due) if due <= now && spared != Some(due) && unread() => {
                    spared = Some(due);
                    deadlines.at(now + HEARD).await;
                }
                Some(due) if due <= now => return,
                // A head may begin at any time.
                due => {
                    let look = now + limits.head;
                    deadlines.at(due.map_or(look, |due| due.min(look))).await;
                }
            }
        }
    }
}

impl Member {
    fn is_quiet(&self) -> bool {
        self.requests.get() == 0 && !self.leaving.get()
    }

    /// How many HTTP/1 connections to pods its requests use.
    pub(crate) fn lines(&self) -> usize {
        self.lines.get()
    }

    /// How many of its requests are at pods.
    pub(crate) fn turns(&self) -> usize {
        self.turns.get()
    }

    /// A request goes to a pod; `line`: on an HTTP/1 connection.
    pub(crate) fn takes_turn(&self, line: bool) {
        self.turns.set(self.turns.get() + 1);
        self.lines.set(self.lines.get() + usize::from(line));
    }

    /// It has come back.
    pub(crate) fn gives_turn_back(&self, line: bool) {
        self.turns.set(self.turns.get().saturating_sub(1));
        self.lines.set(self.lines.get().saturating_sub(usize::from(line)));
        self.turn_free.notify_one();
    }

    /// Ends when one of its requests has come back from its pod.
    pub(crate) async fn turn_given_back(&self) {
        self.turn_free.notified().await;
    }

    fn evict(&self, eviction: &Eviction) {
        match eviction {
            Eviction::Quiet | Eviction::BodyStopped => {
                self.evicted.set(matches!(eviction, Eviction::BodyStopped));
                self.leaving.set(true);
                self.leave.notify_one();
            }
            Eviction::Unread => self.cut(),
        }
    }

    /// Closes it at once.
    fn cut(&self) {
        self.cut.set(true);
        self.evicted.set(true);
        self.leaving.set(true);
        self.leave.notify_one();
    }

    /// Whether it is to be closed at once.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.get()
    }

    /// What waits in hyper's buffers, with what stands behind it.
    pub(crate) fn buffered(&self) -> usize {
        self.unsent_bytes.cost.get()
    }

    /// Since when the head of its next request is incomplete, if that is long enough and the head is long.
    fn head_stalled(&self, before: Moment) -> Option<Moment> {
        let is_long = self.tracker.0.head_bytes.load(Ordering::Relaxed) > LONG_HEAD;
        self.tracker.0.head.get().filter(|since| is_long && *since <= before)
    }

    /// So much more waits.
    pub(crate) fn buffers(&self, cost: usize) {
        self.unsent_bytes.cost.set(self.unsent_bytes.cost.get() + cost);
    }

    /// `bytes` were taken, which frees `cost`.
    pub(crate) fn sent(&self, cost: usize, bytes: usize) {
        let Unsent { cost: all, taken, .. } = &self.unsent_bytes;
        all.set(all.get().saturating_sub(cost));
        taken.set(taken.get() + bytes as u64);
    }

    fn drain(&self, under_way: &Arc<UnderWay>) {
        *self.drain.borrow_mut() = Some(Arc::clone(under_way));
        if self.requests.get() == 0 {
            *self.unsent.borrow_mut() = Some(under_way.begin());
        }
    }

    /// Whether something is under way that may come to its end.
    pub(crate) fn is_asking(&self) -> bool {
        self.requests.get() > 0 && !self.evicted.get()
    }

    /// Whether it has ever asked for something.
    pub(crate) fn is_known(&self) -> bool {
        self.known.get()
    }

    /// Whether nothing is under way but bodies that have not come since `before`.
    fn has_stalled(&self, before: Moment) -> bool {
        let all = self.requests.get() > 0 && self.stalled.get() == self.requests.get();
        all && self.stalled_since.get() <= before && !self.leaving.get()
    }

    /// The body of a request does not come, since `now`.
    pub(crate) fn stalls(&self, now: Moment) {
        self.stalled.set(self.stalled.get() + 1);
        self.stalled_since.set(now);
    }

    /// It does come, or is not wanted any more.
    pub(crate) fn goes_on(&self) {
        self.stalled.set(self.stalled.get().saturating_sub(1));
    }

    /// A request begins.
    pub(crate) fn began(&self) {
        if !self.known.replace(true) {
            self.tracker.head_ends();
        }
        self.requests.set(self.requests.get() + 1);
        if !self.evicted.get() {
            // It crossed our farewell, and needs its seat: otherwise there would be more than are allowed.
            self.leaving.set(false);
        }
    }

    /// A request ended at `now`.
    pub(crate) fn ended(&self, now: Moment) {
        self.requests.set(self.requests.get().saturating_sub(1));
        self.tracker.0.ended.fetch_add(1, Ordering::Relaxed);
        self.quiet.set(now);
        if self.requests.get() == 0
            && let Some(under_way) = &*self.drain.borrow()
        {
            *self.unsent.borrow_mut() = Some(under_way.begin());
        }
    }

    /// For the reader of the connection.
    pub(crate) fn tracker(&self) -> Tracker {
        self.tracker.clone()
    }

    /// Why the last head was refused.
    pub(crate) fn refused(&self) -> Option<Violation> {
        self.tracker.0.refused.get().copied()
    }

    /// The room of the buffer that hyper last read into, on HTTP/1.
    pub(crate) fn read_buffer(&self) -> usize {
        self.tracker.0.buffer.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(connections: usize) -> (Rc<Crowd>, TokioClock) {
        let clock = TokioClock::new();
        let limits = Limits { connections, ..Limits::default() };
        (Crowd::new(clock, limits, 2), clock)
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_quiet_makes_room_and_the_busy_never_do() {
        let (crowd, clock) = crowd(4);
        let first = crowd.enter().unwrap();
        pass(1).await;
        let second = crowd.enter().unwrap();
        first.member.began();
        pass(1).await;
        let third = crowd.enter().expect("the second is quiet");
        assert!(second.member.leaving.get() && !first.member.leaving.get());
        third.member.began();
        drop(second);
        assert!(crowd.enter().is_none(), "nobody is quiet");
        first.member.ended(clock.now());
        assert!(crowd.enter().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_crosses_its_farewell_keeps_its_seat() {
        let (crowd, _) = crowd(4);
        let (first, second) = (crowd.enter().unwrap(), crowd.enter().unwrap());
        second.member.began();
        pass(1).await;
        let newcomer = crowd.enter().expect("the first is quiet");
        assert!(first.member.leaving.get() && !first.member.is_asking());
        newcomer.member.began();
        first.member.began();
        assert!(first.member.is_asking() && !first.member.leaving.get());
        assert!(crowd.enter().is_none(), "it counts again, and nobody is quiet");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_keeps_its_place_until_its_request_may_have_come() {
        let (crowd, clock) = crowd(4);
        let (first, _second) = (crowd.enter().unwrap(), crowd.enter().unwrap());
        assert!(crowd.enter().is_none());
        let began = clock.now();
        crowd.room().await;
        let waited = clock.now().since(began);
        assert!(waited >= NEW && waited < NEW + 2 * LOOK, "{waited:?}");
        assert!(crowd.enter().is_some());
        assert!(first.member.leaving.get());
    }

    #[tokio::test(start_paused = true)]
    async fn new_connections_wait_for_one_that_does_not_read_and_not_for_ever_for_those_that_do() {
        let (crowd, clock) = crowd(4);
        // Time begins at zero, before which there is none.
        pass(60).await;
        let (first, second) = (crowd.enter().unwrap(), crowd.enter().unwrap());
        for seat in [&first, &second] {
            seat.member.began();
            seat.member.buffers(1000);
        }
        let reads = || second.member.sent(0, usize::try_from(PROGRESS).unwrap());
        let looks = async {
            loop {
                crowd.look();
                reads();
                clock.sleep_until(clock.now() + Duration::from_millis(100)).await;
            }
        };
        let room = async {
            let began = clock.now();
            tokio::select! {
                () = looks => unreachable!("it has no end"),
                () = crowd.room() => clock.now().since(began),
            }
        };
        let waited = room.await;
        assert!(waited >= STALL && waited < PATIENCE, "{waited:?}");
        let third = crowd.enter().expect("the first does not read");
        assert!(first.member.is_cut() && !second.member.is_cut());
        drop(first);
        third.member.began();
        let began = clock.now();
        crowd.room().await;
        assert!(clock.now().since(began) >= PATIENCE);
        assert!(crowd.enter().is_none(), "both are at work");
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_that_has_not_read_for_the_longest_is_cut_first_and_one_that_reads_is_not() {
        let (crowd, clock) = crowd(8);
        pass(60).await;
        let seats: Vec<Seat> = (0..3).map(|_| crowd.enter().unwrap()).collect();
        let wait = |seat: &Seat| seat.member.buffers(1000);
        for seat in seats.iter().rev() {
            wait(seat);
            crowd.look();
            pass(1).await;
        }
        seats[1].member.sent(0, usize::try_from(PROGRESS).unwrap());
        crowd.look();
        assert_eq!(crowd.cut_longest_stalled(), Some(1000));
        assert!(seats[2].member.is_cut(), "it was the first to stall, at {:?}", clock.now());
        assert_eq!(crowd.cut_longest_stalled(), Some(1000));
        assert!(seats[0].member.is_cut() && !seats[1].member.is_cut());
        assert_eq!(crowd.cut_longest_stalled(), None);
        let (fresh, larger) = (crowd.enter().unwrap(), crowd.enter().unwrap());
        wait(&fresh);
        crowd.look();
        larger.member.buffers(5000);
        assert_eq!(crowd.cut_at_once(), Some(1000), "a short stall goes before those that move");
        assert!(fresh.member.is_cut() || seats[1].member.is_cut());
    }

    #[tokio::test(start_paused = true)]
    async fn long_heads_wait_while_incomplete_ones_take_up_too_much_and_those_that_do_not_end_are_cut() {
        let clock = TokioClock::new();
        // 64 KiB of heads for one worker.
        let crowd = Crowd::new(clock, Limits { buffers: 128 * 1024, ..Limits::default() }, 1);
        pass(60).await;
        let seats: Vec<Seat> = (0..3).map(|_| crowd.enter().unwrap()).collect();
        let waits = |seat: &Seat| seat.member.tracker().pauses_head(&Context::from_waker(Waker::noop()));
        for (seat, bytes) in seats.iter().zip([60 * 1024, 10 * 1024, LONG_HEAD]) {
            seat.member.tracker().head_begins(clock.now());
            seat.member.tracker().head_takes(bytes);
        }
        assert_eq!(seats.iter().map(waits).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(crowd.relieve_heads(), 0, "they may still come");
        pass(2).await;
        assert_eq!(crowd.relieve_heads(), 1);
        assert!(seats[0].member.is_cut());
        drop(seats.into_iter().next());
        let last = crowd.enter().unwrap();
        last.member.tracker().head_takes(60 * 1024);
        assert!(!waits(&last), "what is gone does not count");
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_do_not_come_keep_no_seat_from_those_who_ask() {
        let (crowd, clock) = crowd(4);
        let deadlines = Deadlines::new(clock);
        let (first, second) = (crowd.enter().unwrap(), crowd.enter().unwrap());
        first.member.began();
        second.member.began();
        pass(60).await;
        second.member.stalls(clock.now());
        pass(5).await;
        first.member.stalls(clock.now());
        assert!(crowd.enter().is_none(), "they may still send");
        pass(6).await;
        let newcomer = crowd.enter().expect("the second has sent nothing for long enough");
        second.outstayed(&deadlines, || false).await;
        newcomer.member.began();
        drop(second);
        pass(60).await;
        first.member.goes_on();
        assert!(crowd.enter().is_none(), "the first sends again");
        assert!(!first.member.leaving.get());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_quiet_only_so_long_and_a_head_takes_only_so_long() {
        let (crowd, clock) = crowd(4);
        let deadlines = Deadlines::new(clock);
        let seat = crowd.enter().unwrap();
        let stays = async |from: Moment| {
            tokio::select! {
                () = deadlines.run() => {}
                () = seat.outstayed(&deadlines, || false) => {}
            }
            clock.now().since(from).as_secs()
        };
        assert_eq!(stays(clock.now()).await, 75);
        seat.member.ended(clock.now());
        seat.member.tracker().head_begins(clock.now());
        assert_eq!(stays(clock.now()).await, 10);
        seat.member.tracker().head_ends();
        seat.member.began();
        pass(1000).await;
        seat.member.ended(clock.now());
        assert_eq!(stays(clock.now()).await, 75);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_sent_in_time_and_is_not_read_yet_is_waited_for_but_once() {
        let (crowd, clock) = crowd(4);
        let deadlines = Deadlines::new(clock);
        let seat = crowd.enter().unwrap();
        let read = Cell::new(false);
        // As after a long stop: everything is due, and the request is still in the socket.
        pass(1000).await;
        let reads = async {
            deadlines.at(clock.now() + HEARD / 2).await;
            read.set(true);
            seat.member.began();
            deadlines.at(clock.now() + Duration::from_secs(5)).await;
            seat.member.ended(clock.now());
            read.set(false);
            clock.now()
        };
        let ends = async {
            seat.outstayed(&deadlines, || !read.get()).await;
            clock.now()
        };
        let (answered, ended) = tokio::select! {
            () = deadlines.run() => unreachable!(),
            both = async { tokio::join!(reads, ends) } => both,
        };
        assert!(
            ended.since(answered) >= Duration::from_secs(75),
            "it was idle for {:?}",
            ended.since(answered)
        );
        assert!(ended.since(answered) < Duration::from_secs(76), "what nobody reads buys no more time");
    }
}
