//! The queue against a naive model, and its pauses.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn id(n: u8) -> ServiceId {
    ServiceId::new("shop", &format!("s{n}")).unwrap()
}

fn at(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

/// A queue with a service that has failed this often in a row, at time 0.
fn failed(times: u32) -> SyncQueue {
    let mut queue = SyncQueue::default();
    queue.add(&id(1), at(0), at(0));
    for _ in 0..times {
        let due = queue.next_due().unwrap();
        assert_eq!(queue.pop(due), Some(id(1)));
        queue.done(&id(1), SyncEnd::Failed { least: Duration::ZERO, random: 0 }, at(0));
    }
    queue
}

#[test]
fn changes_within_the_window_are_one_sync_at_the_time_of_the_first() {
    let mut queue = SyncQueue::default();
    for change in [0, 20, 90] {
        queue.add(&id(1), at(change + 100), at(change));
    }
    assert_eq!((queue.pop(at(99)), queue.next_due()), (None, Some(at(100))));
    assert_eq!((queue.pop(at(100)), queue.pop(at(1000))), (Some(id(1)), None));
}

#[test]
fn a_change_during_a_sync_makes_one_more_and_no_two_run_at_once() {
    let mut queue = SyncQueue::default();
    queue.add(&id(1), at(0), at(0));
    assert_eq!(queue.pop(at(0)), Some(id(1)));
    queue.add(&id(1), at(5), at(5));
    queue.add(&id(1), at(3), at(6));
    assert_eq!(queue.pop(at(10)), None, "it is being synced");
    queue.done(&id(1), SyncEnd::Synced, at(10));
    assert_eq!(queue.oldest(at(10)), Duration::from_millis(5));
    assert_eq!(queue.next_due(), Some(at(3)));
    assert_eq!(queue.pop(at(10)), Some(id(1)));
    queue.done(&id(1), SyncEnd::Synced, at(10));
    assert_eq!((queue.len(), queue.next_due(), queue.oldest(at(99))), (0, None, Duration::ZERO));
}

#[test]
fn pauses_double_up_to_a_minute_and_half_of_each_is_jitter() {
    for (failures, seconds) in [(1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (50, 60)] {
        let longest = Duration::from_secs(seconds);
        assert_eq!(pause(failures, 0), longest / 2, "{failures}");
        assert!(longest.abs_diff(pause(failures, u64::MAX)) < Duration::from_micros(1), "{failures}");
        assert_eq!(failed(failures).next_due(), Some(Moment::ZERO + longest / 2));
    }
}

#[test]
fn the_pause_after_a_failure_holds_whatever_changes_and_a_success_ends_it() {
    let mut queue = failed(1);
    queue.add(&id(1), at(10), at(10));
    assert_eq!(queue.next_due(), Some(at(500)));
    assert_eq!(queue.pop(at(500)), Some(id(1)));
    queue.add(&id(1), at(501), at(501));
    queue.done(&id(1), SyncEnd::Synced, at(502));
    assert_eq!(queue.next_due(), Some(at(501)));
    assert_eq!(queue.pop(at(502)), Some(id(1)));
    queue.done(&id(1), SyncEnd::Failed { least: Duration::ZERO, random: 0 }, at(502));
    assert_eq!(queue.next_due(), Some(at(1002)), "the count of failures began again");
}

#[test]
fn the_api_server_may_ask_for_a_longer_pause() {
    let mut queue = failed(0);
    assert_eq!(queue.pop(at(0)), Some(id(1)));
    queue.done(&id(1), SyncEnd::Failed { least: Duration::from_secs(9), random: 0 }, at(0));
    assert_eq!(queue.next_due(), Some(at(9000)));
}

#[test]
fn what_was_missing_may_come_before_the_pause_ends() {
    let mut queue = failed(0);
    for expected in [500, 1000, 2000] {
        let due = queue.next_due().unwrap();
        assert_eq!(queue.pop(due), Some(id(1)));
        queue.done(&id(1), SyncEnd::Incomplete { random: 0 }, at(0));
        assert_eq!(queue.next_due(), Some(at(expected)));
    }
    queue.add(&id(1), at(7), at(7));
    assert_eq!(queue.next_due(), Some(at(7)));
}

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Add(u8, u64),
    Pop,
    /// Ends the oldest sync.
    Done(u8, u64),
}

/// What a service waits for, as a list of wishes.
#[derive(Debug, Default)]
struct Model {
    services: BTreeMap<u8, Service>,
    arrivals: u64,
}

#[derive(Debug, Default)]
struct Service {
    /// The time and the arrival of each wish that no sync has taken.
    wishes: Vec<(Moment, u64)>,
    running: bool,
    failures: u32,
    not_before: Moment,
}

impl Model {
    fn add(&mut self, service: u8, due: Moment) {
        self.arrivals += 1;
        let arrival = self.arrivals;
        self.services.entry(service).or_default().wishes.push((due, arrival));
    }

    /// When a service is due.
    fn due(service: &Service) -> Option<Moment> {
        let earliest = service.wishes.iter().map(|(due, _)| *due).min()?;
        Some(earliest.max(service.not_before)).filter(|_| !service.running)
    }

    fn next_due(&self) -> Option<Moment> {
        self.services.values().filter_map(Self::due).min()
    }

    fn popped(&mut self, service: u8, now: Moment) {
        let known = self.services.get_mut(&service).unwrap();
        let due = Self::due(known).expect("it waits and is not being synced");
        assert!(due <= now);
        (known.wishes, known.running) = (Vec::new(), true);
    }

    fn done(&mut self, service: u8, end: SyncEnd, now: Moment) {
        let arrival = self.arrivals + 1;
        self.arrivals = arrival;
        let known = self.services.get_mut(&service).unwrap();
        known.running = false;
        match end {
            SyncEnd::Synced => known.failures = 0,
            SyncEnd::Postponed(due) => known.wishes.push((due, arrival)),
            SyncEnd::Failed { least, random } => {
                known.failures += 1;
                known.not_before = now + pause(known.failures, random).max(least);
                known.wishes.push((known.not_before, arrival));
            }
            SyncEnd::Incomplete { random } => {
                known.failures += 1;
                known.wishes.push((now + pause(known.failures, random), arrival));
            }
        }
        if known.wishes.is_empty() {
            self.services.remove(&service);
        }
    }
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3000_u64).prop_map(Step::Pass),
        4 => (0..4_u8, 0..500_u64).prop_map(|(service, later)| Step::Add(service, later)),
        4 => Just(Step::Pop),
        3 => (0..4_u8, any::<u64>()).prop_map(|(end, random)| Step::Done(end, random)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn each_change_is_synced_in_time_and_no_service_twice_at_once(history in proptest::collection::vec(steps(), 1..60)) {
        let (mut queue, mut model, mut now) = (SyncQueue::default(), Model::default(), Moment::ZERO);
        let mut running: Vec<u8> = Vec::new();
        for step in history {
            match step {
                Step::Pass(millis) => now = now + Duration::from_millis(millis),
                Step::Add(service, later) => {
                    let due = now + Duration::from_millis(later);
                    queue.add(&id(service), due, now);
                    model.add(service, due);
                }
                Step::Pop => {
                    let due = model.next_due();
                    let popped = queue.pop(now);
                    prop_assert_eq!(popped.is_some(), due.is_some_and(|due| due <= now));
                    let Some(popped) = popped else { continue };
                    let service = (0..4).find(|n| id(*n) == popped).unwrap();
                    prop_assert_eq!(Model::due(&model.services[&service]), due, "the first one comes first");
                    model.popped(service, now);
                    running.push(service);
                }
                Step::Done(end, random) => {
                    if running.is_empty() {
                        continue;
                    }
                    let service = running.remove(0);
                    let end = match end {
                        0 => SyncEnd::Synced,
                        1 => SyncEnd::Postponed(now + Duration::from_millis(random % 900)),
                        2 => SyncEnd::Failed { least: Duration::from_millis(random % 3000), random },
                        _ => SyncEnd::Incomplete { random },
                    };
                    queue.done(&id(service), end, now);
                    model.done(service, end, now);
                }
            }
            prop_assert_eq!(queue.next_due(), model.next_due());
            prop_assert_eq!(queue.len(), model.services.len());
        }
    }
}
