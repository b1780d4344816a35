//! Leader election: several candidates, a server that checks versions, and a network that loses and delays. Ten thousand random
//! histories: never do two candidates lead at once, and one leads soon after the last disturbance.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "tests")]
#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rouse_core::lease::{
    ClaimKind, Election, LeaseClaim, LeaseRecord, LeaseStep, LeaseTiming, SeenLease, VACANT,
};
use rouse_core::time::Moment;

fn at(seconds: u64) -> Moment {
    Moment::from_secs(seconds)
}

fn seen(holder: Option<&str>, version: &str) -> SeenLease {
    let lease = LeaseTiming::default().lease;
    let record = LeaseRecord { holder: holder.map(Into::into), lease, transitions: 3 };
    SeenLease { record, version: version.into() }
}

fn candidate() -> Election {
    Election::new("me", LeaseTiming::default())
}

fn claimed(step: LeaseStep) -> LeaseClaim {
    match step {
        LeaseStep::Write(claim) => claim,
        other => panic!("{other:?}"),
    }
}

/// A candidate that acquired a released record at `now`.
fn leader(now: Moment) -> Election {
    let mut election = candidate();
    assert_eq!(election.step(now), LeaseStep::Read);
    election.observed(now, Some(seen(None, "1")));
    let claim = claimed(election.step(now));
    assert_eq!(
        (claim.kind, claim.transitions, claim.based_on.as_deref()),
        (ClaimKind::Acquire, 4, Some("1"))
    );
    election.wrote(now, &claim, seen(Some("me"), "2"));
    assert!(election.may_write(now));
    election
}

#[test]
fn a_released_record_is_taken_at_once_and_renewed_every_five_seconds() {
    let mut election = leader(at(100));
    assert_eq!(election.step(at(100)), LeaseStep::Wait(Some(at(105))));
    let claim = claimed(election.step(at(105)));
    assert_eq!((claim.kind, claim.transitions, claim.based_on.as_deref()), (ClaimKind::Renew, 3, Some("2")));
    election.wrote(at(106), &claim, seen(Some("me"), "3"));
    // From the beginning of the write, not from its end.
    assert!(election.may_write(at(114)) && !election.may_write(at(115)));
}

#[test]
fn a_record_of_another_is_taken_only_after_a_lease_without_a_change() {
    let mut election = candidate();
    for second in (0..100).step_by(2) {
        assert_eq!(election.step(at(second)), LeaseStep::Read, "{second}");
        election.observed(at(second), Some(seen(Some("other"), &format!("{}", second / 14))));
    }
    // The last change was seen at 98.
    for second in (100..113).step_by(2) {
        assert_eq!(election.step(at(second)), LeaseStep::Read, "{second}");
        election.observed(at(second), Some(seen(Some("other"), "7")));
    }
    assert_eq!(election.step(at(112)), LeaseStep::Wait(Some(at(113))));
    assert_eq!(claimed(election.step(at(113))).kind, ClaimKind::Acquire);
}

#[test]
fn the_lease_of_a_holder_with_a_longer_one_is_respected() {
    let mut election = candidate();
    let mut other = seen(Some("other"), "1");
    other.record.lease = Duration::from_mins(1);
    election.observed(at(0), Some(other.clone()));
    election.observed(at(59), Some(other));
    assert_eq!(election.step(at(59)), LeaseStep::Wait(Some(at(60))));
    assert_eq!(claimed(election.step(at(60))).kind, ClaimKind::Acquire);
}

#[test]
fn a_process_that_stood_still_past_its_hold_does_not_write_when_it_goes_on() {
    let mut election = leader(at(100));
    assert!(!election.may_write(at(130)));
    // It tries to renew, and finds that another one leads.
    let claim = claimed(election.step(at(130)));
    election.refused(at(130));
    assert_eq!(election.step(at(131)), LeaseStep::Read);
    election.observed(at(131), Some(seen(Some("other"), "9")));
    assert!(!election.may_write(at(131)));
    assert!(matches!(election.step(at(131)), LeaseStep::Wait(_)), "{claim:?}");
}

#[test]
fn a_renewal_that_fails_is_tried_again_while_the_lease_runs() {
    let mut election = leader(at(100));
    election.failed(at(105));
    assert!(election.may_write(at(109)));
    assert_eq!(election.step(at(105)), LeaseStep::Wait(Some(at(107))));
    let claim = claimed(election.step(at(107)));
    election.wrote(at(107), &claim, seen(Some("me"), "3"));
    assert!(election.may_write(at(116)));
}

#[test]
fn a_claim_whose_answer_was_lost_is_renewed_at_once_when_it_is_found() {
    let mut election = candidate();
    election.observed(at(100), Some(seen(None, "1")));
    claimed(election.step(at(100)));
    election.failed(at(104));
    assert_eq!(claimed(election.step(at(106))).based_on.as_deref(), Some("1"));
    election.refused(at(106));
    election.observed(at(107), Some(seen(Some("me"), "2")));
    assert!(!election.may_write(at(107)), "it is not known since when");
    let claim = claimed(election.step(at(107)));
    assert_eq!(claim.kind, ClaimKind::Renew);
    election.wrote(at(107), &claim, seen(Some("me"), "3"));
    assert!(election.may_write(at(107)));
}

#[test]
fn a_missing_record_is_made_and_taken_after_the_length_of_a_lease() {
    let mut election = candidate();
    election.observed(at(0), None);
    let claim = claimed(election.step(at(0)));
    assert_eq!((claim.kind, &claim.based_on, claim.transitions), (ClaimKind::Create, &None, 0));
    election.wrote(at(1), &claim, seen(Some(VACANT), "1"));
    assert!(!election.may_write(at(1)));
    for second in (3..16).step_by(2) {
        assert_eq!(election.step(at(second)), LeaseStep::Read, "{second}");
        election.observed(at(second), Some(seen(Some(VACANT), "1")));
    }
    assert_eq!(claimed(election.step(at(16))).kind, ClaimKind::Acquire);
}

#[test]
fn a_leader_whose_record_is_deleted_stops_at_once() {
    let mut election = leader(at(100));
    claimed(election.step(at(105)));
    election.gone(at(105));
    assert!(!election.may_write(at(105)));
    assert_eq!(claimed(election.step(at(105))).kind, ClaimKind::Create);
}

#[test]
fn a_candidate_that_releases_the_record_stops_first_and_for_ever() {
    let mut election = leader(at(100));
    let claim = election.release(at(101)).unwrap();
    assert_eq!((claim.kind, claim.based_on.as_deref()), (ClaimKind::Release, Some("2")));
    assert!(!election.may_write(at(101)));
    election.wrote(at(101), &claim, seen(Some("me"), "3"));
    assert!(!election.may_write(at(101)));
    assert_eq!(election.step(at(101)), LeaseStep::Wait(None));
    assert_eq!(candidate().release(at(0)), None, "it holds nothing");
}

#[test]
fn a_change_that_is_announced_is_read_soon_but_not_more_often_than_that() {
    let mut election = candidate();
    election.observed(at(100), Some(seen(Some("other"), "1")));
    election.changed(at(101));
    assert_eq!(election.step(at(101)), LeaseStep::Read);
    election.observed(at(101), Some(seen(Some("other"), "1")));
    election.changed(at(101));
    let soon = at(101) + Duration::from_millis(100);
    assert_eq!(election.step(at(101)), LeaseStep::Wait(Some(soon)));
    let mut leading = leader(at(100));
    leading.changed(at(101));
    assert_eq!(leading.step(at(101)), LeaseStep::Wait(Some(at(105))), "it has made the change");
}

/// Milliseconds per step of a history.
const TICK: u64 = 100;
/// How long a history is disturbed, in ticks.
const DISTURBED: u64 = 1200;
/// A candidate gives a request up after this many ticks. It may arrive later all the same.
const PATIENCE: u64 = 40;
/// The latest arrival of a request, in ticks.
const LATEST: u64 = 200;
/// After this many ticks without a disturbance, one leads and stays: the last request arrives, a lease has to pass after it, and a request may
/// have to be given up before it and tried again.
const RECOVERY: u64 = LATEST + 150 + 60;

/// What becomes of a request.
#[derive(Debug, Clone, Copy)]
struct Fate {
    /// Ticks until it arrives; `None`: it never does.
    there: Option<u64>,
    /// Ticks until its answer arrives.
    back: Option<u64>,
}

/// What happens besides.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A candidate stands still for some ticks. Its clock goes on.
    Pause { who: usize, ticks: u64 },
    /// Its requests and answers are lost for some ticks.
    CutOff { who: usize, ticks: u64 },
    /// It ends, releases the record, and a new one takes its place.
    Restart { who: usize },
    /// A person deletes the record.
    Delete,
    /// A person edits the record: its version changes.
    Edit,
}

#[derive(Debug, Clone)]
enum Ask {
    Read,
    Claim(LeaseClaim, LeaseRecord),
}

#[derive(Debug, Clone)]
enum Reply {
    Read(Option<SeenLease>),
    Wrote(SeenLease),
    Refused,
    Gone,
}

/// The API server: one object with a version.
#[derive(Default)]
struct Server {
    lease: Option<SeenLease>,
    version: u64,
}

impl Server {
    fn put(&mut self, record: LeaseRecord) -> SeenLease {
        self.version += 1;
        let lease = SeenLease { record, version: self.version.to_string().into() };
        self.lease = Some(lease.clone());
        lease
    }

    fn answer(&mut self, ask: &Ask) -> Reply {
        let (claim, record) = match ask {
            Ask::Read => return Reply::Read(self.lease.clone()),
            Ask::Claim(claim, record) => (claim, record),
        };
        match (&claim.based_on, &self.lease) {
            (None, Some(_)) => Reply::Refused,
            (Some(_), None) => Reply::Gone,
            (Some(version), Some(lease)) if *version != lease.version => Reply::Refused,
            _ => Reply::Wrote(self.put(record.clone())),
        }
    }
}

/// A request that the candidate waits for.
struct Waiting {
    ask: Ask,
    since: u64,
    answer: Option<(u64, Reply)>,
}

struct Candidate {
    name: Arc<str>,
    election: Election,
    /// Its clock counts from another origin.
    offset: Duration,
    paused_until: u64,
    cut_off_until: u64,
    waiting: Option<Waiting>,
}

impl Candidate {
    fn new(name: &str, offset: u64) -> Self {
        Self {
            name: name.into(),
            election: Election::new(name, LeaseTiming::default()),
            offset: Duration::from_secs(offset),
            paused_until: 0,
            cut_off_until: 0,
            waiting: None,
        }
    }

    fn clock(&self, tick: u64) -> Moment {
        Moment::from_millis(tick * TICK) + self.offset
    }

    /// Takes an answer that has arrived, or gives up.
    fn hear(&mut self, tick: u64) {
        let now = self.clock(tick);
        let Some(waiting) = &self.waiting else { return };
        let (answer, late) = (waiting.answer.clone(), tick >= waiting.since + PATIENCE);
        // Also after its time: a process that stood still finds both, and may take the answer.
        match answer.filter(|(at, _)| *at <= tick) {
            Some((_, reply)) => {
                let ask = waiting.ask.clone();
                self.take(now, &ask, reply);
            }
            None if late => self.election.failed(now),
            None => return,
        }
        self.waiting = None;
    }

    fn take(&mut self, now: Moment, ask: &Ask, reply: Reply) {
        match (ask, reply) {
            (Ask::Claim(claim, _), Reply::Wrote(lease)) => self.election.wrote(now, claim, lease),
            (_, Reply::Read(seen)) => self.election.observed(now, seen),
            (_, Reply::Gone) => self.election.gone(now),
            (_, Reply::Refused) => self.election.refused(now),
            (Ask::Read, Reply::Wrote(_)) => panic!("a read does not write"),
        }
    }

    /// The request to send now.
    fn act(&mut self, tick: u64) -> Option<Ask> {
        if self.waiting.is_some() {
            return None;
        }
        match self.election.step(self.clock(tick)) {
            LeaseStep::Wait(_) => None,
            LeaseStep::Read => Some(Ask::Read),
            LeaseStep::Write(claim) => Some(self.claim(claim)),
        }
    }

    fn claim(&self, claim: LeaseClaim) -> Ask {
        let holder = match claim.kind {
            ClaimKind::Create => Some(VACANT.into()),
            ClaimKind::Acquire | ClaimKind::Renew => Some(Arc::clone(&self.name)),
            ClaimKind::Release => None,
        };
        let lease = LeaseTiming::default().lease;
        let record = LeaseRecord { holder, lease, transitions: claim.transitions };
        Ask::Claim(claim, record)
    }
}

/// Several candidates and one server.
struct World {
    tick: u64,
    server: Server,
    candidates: Vec<Candidate>,
    /// Requests under way: when each arrives, of whom, and when the answer is back.
    under_way: Vec<(u64, usize, Ask, Option<u64>)>,
    fates: std::vec::IntoIter<Fate>,
    restarts: u64,
    led: u64,
}

impl World {
    fn new(candidates: usize, fates: Vec<Fate>) -> Self {
        let name = |n: usize| Candidate::new(&format!("c{n}"), 1000 * n as u64);
        Self {
            tick: 0,
            server: Server::default(),
            candidates: (0..candidates).map(name).collect(),
            under_way: Vec::new(),
            fates: fates.into_iter(),
            restarts: 0,
            led: 0,
        }
    }

    fn leaders(&self) -> usize {
        let leads = |candidate: &&Candidate| candidate.election.may_write(candidate.clock(self.tick));
        self.candidates.iter().filter(leads).count()
    }

    fn send(&mut self, who: usize, ask: Ask) {
        let healthy = Fate { there: Some(0), back: Some(0) };
        let fate = if self.tick < DISTURBED { self.fates.next().unwrap_or(healthy) } else { healthy };
        let cut = self.candidates[who].cut_off_until > self.tick;
        if let Some(there) = fate.there.filter(|_| !cut) {
            let back = fate.back.map(|back| self.tick + there + back);
            self.under_way.push((self.tick + there, who, ask.clone(), back));
        }
        self.candidates[who].waiting = Some(Waiting { ask, since: self.tick, answer: None });
    }

    /// The server answers what arrives now, also what its sender has given up or has died since.
    fn arrive(&mut self) {
        let tick = self.tick;
        let (now, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.under_way).into_iter().partition(|(at, ..)| *at <= tick);
        self.under_way = later;
        for (_, who, ask, back) in now {
            let reply = self.server.answer(&ask);
            let sent = self.candidates[who].waiting.as_mut();
            let same = |waiting: &&mut Waiting| match (&waiting.ask, &ask) {
                (Ask::Read, Ask::Read) => true,
                (Ask::Claim(one, a), Ask::Claim(other, b)) => one == other && a == b,
                _ => false,
            };
            if let (Some(waiting), Some(back)) = (sent.filter(same), back) {
                waiting.answer = Some((back, reply));
            }
        }
    }

    fn happen(&mut self, event: Event) {
        let count = self.candidates.len();
        match event {
            Event::Pause { who, ticks } => self.candidates[who % count].paused_until = self.tick + ticks,
            Event::CutOff { who, ticks } => self.candidates[who % count].cut_off_until = self.tick + ticks,
            Event::Restart { who } => {
                let (who, tick) = (who % count, self.tick);
                self.restarts += 1;
                let name = format!("{}'{}", self.candidates[who].name, self.restarts);
                let mut before = std::mem::replace(&mut self.candidates[who], Candidate::new(&name, 7));
                if let Some(claim) = before.election.release(before.clock(tick)) {
                    let ask = before.claim(claim);
                    self.send(who, ask);
                    self.candidates[who].waiting = None;
                }
            }
            Event::Delete => self.server.lease = None,
            Event::Edit => {
                if let Some(lease) = self.server.lease.clone() {
                    self.server.put(lease.record);
                }
            }
        }
    }

    /// One tick: answers, then steps. Checks after each step of each candidate that at most one leads.
    fn turn(&mut self) {
        self.arrive();
        for who in 0..self.candidates.len() {
            if self.candidates[who].paused_until > self.tick {
                continue;
            }
            self.candidates[who].hear(self.tick);
            assert!(self.leaders() <= 1, "two lead at tick {}", self.tick);
            if let Some(ask) = self.candidates[who].act(self.tick) {
                self.send(who, ask);
            }
        }
        self.led += u64::from(self.leaders() == 1);
        self.tick += 1;
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    let soon = || prop_oneof![6 => Just(Some(0)), 3 => (0..PATIENCE).prop_map(Some)];
    let there = prop_oneof![8 => soon(), 1 => (0..LATEST).prop_map(Some), 1 => Just(None)];
    let back = prop_oneof![8 => soon(), 1 => Just(None)];
    (there, back).prop_map(|(there, back)| Fate { there, back })
}

fn event() -> impl Strategy<Value = Event> {
    let who = 0..4_usize;
    prop_oneof![
        3 => (who.clone(), 1..400_u64).prop_map(|(who, ticks)| Event::Pause { who, ticks }),
        2 => (who.clone(), 1..400_u64).prop_map(|(who, ticks)| Event::CutOff { who, ticks }),
        2 => who.prop_map(|who| Event::Restart { who }),
        1 => Just(Event::Delete),
        1 => Just(Event::Edit),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn no_two_candidates_lead_at_once_and_one_leads_again_soon(
        candidates in 2..4_usize,
        fates in proptest::collection::vec(fate(), 0..300),
        mut events in proptest::collection::vec((0..DISTURBED, event()), 0..12),
    ) {
        events.sort_by_key(|(when, _)| *when);
        let mut world = World::new(candidates, fates);
        let mut events = events.into_iter().peekable();
        while world.tick < DISTURBED {
            while let Some((_, event)) = events.next_if(|(when, _)| *when <= world.tick) {
                world.happen(event);
            }
            world.turn();
        }
        for candidate in &mut world.candidates {
            (candidate.paused_until, candidate.cut_off_until) = (0, 0);
        }
        while world.tick < DISTURBED + RECOVERY {
            world.turn();
        }
        let led = world.led;
        while world.tick < DISTURBED + RECOVERY + 600 {
            world.turn();
        }
        prop_assert_eq!(world.led - led, 600, "ticks with a leader");
    }
}

#[test]
fn without_disturbances_one_leads_for_nearly_all_of_the_time() {
    let mut world = World::new(3, Vec::new());
    for _ in 0..6000 {
        world.turn();
    }
    // There was no record at first.
    assert!(world.led >= 6000 - 155, "{}", world.led);
}
