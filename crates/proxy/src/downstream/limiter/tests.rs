//! Tests of the connection limiter under paused time.

use std::task::{Context, Waker};

use super::eviction::{MAX_STALL, NEW};
use super::*;
use crate::budget::LONG_HEAD;
use crate::client::{MIN_PROGRESS, RequestGuard};
use crate::runtime::Deadlines;

fn limiter(connections: usize) -> (Rc<ConnectionLimiter>, TokioClock) {
    let clock = TokioClock::new();
    let limits = ConnectionLimits { connections, ..ConnectionLimits::default() };
    (ConnectionLimiter::new(clock, limits, 2), clock)
}

async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn the_longest_idle_connection_makes_room_and_busy_ones_do_not() {
    let (limiter, _clock) = limiter(4);
    let first = limiter.admit().unwrap();
    pass(1).await;
    let second = limiter.admit().unwrap();
    let request = first.connection.begin_request();
    pass(1).await;
    let third = limiter.admit().expect("the second is idle");
    assert!(second.connection.leaving.get() && !first.connection.leaving.get());
    let _third_request = third.connection.begin_request();
    drop(second);
    assert!(limiter.admit().is_none(), "none is idle");
    drop(request);
    assert!(limiter.admit().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_during_eviction_keeps_its_permit() {
    let (limiter, _) = limiter(4);
    let (first, second) = (limiter.admit().unwrap(), limiter.admit().unwrap());
    let _second_request = second.connection.begin_request();
    pass(1).await;
    let newcomer = limiter.admit().expect("the first is idle");
    assert!(first.connection.leaving.get() && !first.connection.has_request());
    let _newcomer_request = newcomer.connection.begin_request();
    let _first_request = first.connection.begin_request();
    assert!(first.connection.has_request() && !first.connection.leaving.get());
    assert!(limiter.admit().is_none(), "it counts again, and none is idle");
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_keeps_its_place_until_its_request_may_have_come() {
    let (limiter, clock) = limiter(4);
    let (first, _second) = (limiter.admit().unwrap(), limiter.admit().unwrap());
    assert!(limiter.admit().is_none());
    let began = clock.now();
    limiter.wait_for_room().await;
    let waited = clock.now().since(began);
    assert!(waited >= NEW && waited < NEW + 2 * CHECK_INTERVAL, "{waited:?}");
    assert!(limiter.admit().is_some());
    assert!(first.connection.leaving.get());
}

#[tokio::test(start_paused = true)]
async fn new_connections_wait_for_one_that_does_not_read_and_only_for_a_limited_time_for_others() {
    let (limiter, clock) = limiter(4);
    // Time begins at zero, before which there is none.
    pass(60).await;
    let (first, second) = (limiter.admit().unwrap(), limiter.admit().unwrap());
    let mut requests: Vec<RequestGuard> = Vec::new();
    for permit in [&first, &second] {
        requests.push(permit.connection.begin_request());
        permit.connection.client.add_buffered(1000);
    }
    let reads = || second.connection.client.remove_buffered(0, usize::try_from(MIN_PROGRESS).unwrap());
    let looks = async {
        loop {
            limiter.check_progress();
            reads();
            clock.sleep_until(clock.now() + Duration::from_millis(100)).await;
        }
    };
    let room = async {
        let began = clock.now();
        tokio::select! {
            () = looks => unreachable!("it has no end"),
            () = limiter.wait_for_room() => clock.now().since(began),
        }
    };
    let waited = room.await;
    assert!(waited >= MAX_STALL && waited < MAX_WAIT, "{waited:?}");
    let third = limiter.admit().expect("the first does not read");
    assert!(first.connection.is_cut() && !second.connection.is_cut());
    drop(first);
    let _third_request = third.connection.begin_request();
    let began = clock.now();
    limiter.wait_for_room().await;
    assert!(clock.now().since(began) >= MAX_WAIT);
    assert!(limiter.admit().is_none(), "both are at work");
}

#[tokio::test(start_paused = true)]
async fn the_connection_that_has_not_read_for_the_longest_is_cut_first() {
    let (limiter, clock) = limiter(8);
    pass(60).await;
    let permits: Vec<ConnectionPermit> = (0..3).map(|_| limiter.admit().unwrap()).collect();
    let wait = |permit: &ConnectionPermit| permit.connection.client.add_buffered(1000);
    for permit in permits.iter().rev() {
        wait(permit);
        limiter.check_progress();
        pass(1).await;
    }
    permits[1].connection.client.remove_buffered(0, usize::try_from(MIN_PROGRESS).unwrap());
    limiter.check_progress();
    assert_eq!(limiter.cut_longest_unread(), Some(1000));
    assert!(permits[2].connection.is_cut(), "it was the first to stall, at {:?}", clock.now());
    assert_eq!(limiter.cut_longest_unread(), Some(1000));
    assert!(permits[0].connection.is_cut() && !permits[1].connection.is_cut());
    assert_eq!(limiter.cut_longest_unread(), None);
}

#[tokio::test(start_paused = true)]
async fn far_over_the_budget_a_client_that_reads_is_cut_last() {
    let (limiter, _clock) = limiter(8);
    pass(60).await;
    let reading = limiter.admit().unwrap();
    let reads = || reading.connection.client.remove_buffered(0, usize::try_from(MIN_PROGRESS).unwrap());
    reading.connection.client.add_buffered(5000);
    limiter.check_progress();
    reads();
    limiter.check_progress();
    // It pauses for less than a stall, and other connections are first seen together with it.
    tokio::time::advance(MAX_STALL / 2).await;
    let stalled = [limiter.admit().unwrap(), limiter.admit().unwrap()];
    for permit in &stalled {
        permit.connection.client.add_buffered(1000);
        // The first bytes of a client that never reads fill the kernel's buffers.
        permit.connection.client.remove_buffered(0, 100 * 1024);
    }
    limiter.check_progress();
    assert_eq!(limiter.cut_at_once(), Some(1000));
    assert_eq!(limiter.cut_at_once(), Some(1000));
    assert!(stalled.iter().all(|permit| permit.connection.is_cut()) && !reading.connection.is_cut());
    assert_eq!(limiter.cut_at_once(), Some(5000), "memory goes before the last client");
    assert_eq!(limiter.cut_at_once(), None);
}

#[tokio::test(start_paused = true)]
async fn long_heads_pause_while_incomplete_heads_take_too_many_bytes_and_stalled_ones_are_cut() {
    let clock = TokioClock::new();
    // 64 KiB of heads for one worker.
    let limiter = ConnectionLimiter::new(
        clock,
        ConnectionLimits { buffers: 128 * 1024, ..ConnectionLimits::default() },
        1,
    );
    pass(60).await;
    let permits: Vec<ConnectionPermit> = (0..3).map(|_| limiter.admit().unwrap()).collect();
    let waits = |permit: &ConnectionPermit| {
        permit.connection.tracker().pauses_head(&Context::from_waker(Waker::noop()))
    };
    for (permit, bytes) in permits.iter().zip([60 * 1024, 10 * 1024, LONG_HEAD]) {
        permit.connection.tracker().head_begins(clock.now());
        permit.connection.tracker().head_takes(bytes);
    }
    assert_eq!(permits.iter().map(waits).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(limiter.relieve_heads(), 0, "they may still come");
    pass(2).await;
    assert_eq!(limiter.relieve_heads(), 1);
    assert!(permits[0].connection.is_cut());
    drop(permits.into_iter().next());
    let last = limiter.admit().unwrap();
    last.connection.tracker().head_takes(60 * 1024);
    assert!(!waits(&last), "what is gone does not count");
}

#[tokio::test(start_paused = true)]
async fn connections_with_stalled_bodies_make_room_for_new_ones() {
    let (limiter, clock) = limiter(4);
    let deadlines = Deadlines::new(clock);
    let (first, second) = (limiter.admit().unwrap(), limiter.admit().unwrap());
    let _first_request = first.connection.begin_request();
    let _second_request = second.connection.begin_request();
    pass(60).await;
    second.connection.client.body_stalls(clock.now());
    pass(5).await;
    first.connection.client.body_stalls(clock.now());
    assert!(limiter.admit().is_none(), "they may still send");
    pass(6).await;
    let newcomer = limiter.admit().expect("the second has sent nothing for long enough");
    second.expired(&deadlines, || false).await;
    let _newcomer_request = newcomer.connection.begin_request();
    drop(second);
    pass(60).await;
    first.connection.client.body_resumes();
    assert!(limiter.admit().is_none(), "the first sends again");
    assert!(!first.connection.leaving.get());
}

#[tokio::test(start_paused = true)]
async fn idle_connections_and_incomplete_heads_time_out() {
    let (limiter, clock) = limiter(4);
    let deadlines = Deadlines::new(clock);
    let permit = limiter.admit().unwrap();
    let stays = async |from: Moment| {
        tokio::select! {
            () = deadlines.run() => {}
            () = permit.expired(&deadlines, || false) => {}
        }
        clock.now().since(from).as_secs()
    };
    assert_eq!(stays(clock.now()).await, 75);
    drop(permit.connection.begin_request());
    permit.connection.tracker().head_begins(clock.now());
    assert_eq!(stays(clock.now()).await, 10);
    permit.connection.tracker().head_ends();
    let request = permit.connection.begin_request();
    pass(1000).await;
    drop(request);
    assert_eq!(stays(clock.now()).await, 75);
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_not_read_yet_extend_a_timeout_once() {
    let (limiter, clock) = limiter(4);
    let deadlines = Deadlines::new(clock);
    let permit = limiter.admit().unwrap();
    let read = Cell::new(false);
    // As after a long stop: everything is due, and the request is still in the socket.
    pass(1000).await;
    let reads = async {
        deadlines.at(clock.now() + tracked::SOCKET_LATENCY / 2).await;
        read.set(true);
        let request = permit.connection.begin_request();
        deadlines.at(clock.now() + Duration::from_secs(5)).await;
        drop(request);
        read.set(false);
        clock.now()
    };
    let ends = async {
        permit.expired(&deadlines, || !read.get()).await;
        clock.now()
    };
    let (answered, ended) = tokio::select! {
        () = deadlines.run() => unreachable!(),
        both = async { tokio::join!(reads, ends) } => both,
    };
    assert!(ended.since(answered) >= Duration::from_secs(75), "it was idle for {:?}", ended.since(answered));
    assert!(ended.since(answered) < Duration::from_secs(76), "unread bytes give no more time");
}
