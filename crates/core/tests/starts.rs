//! Failed starts: which failures end which holds, and how the service recovers.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use rouse_core::cold_start::ColdStartOutcome;
use rouse_core::hold::AcquireError;
use rouse_core::service::Service;
use rouse_core::snapshot::ConcurrencyLimits;
use rouse_core::start_failure::{StartFailure, StartFailureCause};
use rouse_testkit::fakes::{Bench, READY, STARTING, ready_slice, slice};
use rouse_testkit::slot_requests::{Request, line};

fn fails(service: &Service, cause: StartFailureCause) {
    service.wake_failed(StartFailure::new(cause, "the whole story"));
}

fn cause(error: &AcquireError) -> Option<StartFailureCause> {
    match error {
        AcquireError::StartFailed(failure) => Some(failure.cause),
        _ => None,
    }
}

/// Advances time, and runs every timer that is due by then.
fn pass(bench: &Bench, time: Duration) {
    bench.clock.advance(time);
    bench.registry.tick();
}

#[test]
fn a_final_failure_ends_all_holds_at_once() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    let mut waiting = line(&port, 3);
    fails(&service, StartFailureCause::CannotRun);
    for request in &mut waiting {
        assert_eq!(request.waker.wake_count(), 1, "woken, not found out by chance");
        assert_eq!(cause(&request.turned_away()), Some(StartFailureCause::CannotRun));
    }
    drop(waiting);
    assert_eq!((service.holds(), bench.registry.holds()), (0, 0));
}

#[test]
fn progress_and_failures_that_may_pass_end_no_hold() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    let mut waiting = line(&port, 1);
    for cause in [
        StartFailureCause::NotReady,
        StartFailureCause::Crashed,
        StartFailureCause::ClusterUnavailable,
        StartFailureCause::ScaleRefused,
    ] {
        fails(&service, cause);
        service.wake_progressed();
        pass(&bench, Duration::from_secs(20));
    }
    assert!(waiting[0].poll().is_pending());
    service.put_slice("a", ready_slice(1));
    drop(waiting[0].served());
}

#[test]
fn while_a_pod_is_starting_no_failure_ends_a_hold() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    service.put_slice("a", slice([(1, STARTING)]));
    let mut waiting = line(&port, 1);
    fails(&service, StartFailureCause::NoScaleTarget);
    assert!(waiting[0].poll().is_pending());
    service.put_slice("a", slice([(1, READY)]));
    drop(waiting[0].served());
}

#[test]
fn three_refusals_over_five_seconds_end_the_holds_by_time_alone() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    let mut waiting = line(&port, 1);
    for _ in 0..3 {
        fails(&service, StartFailureCause::ScaleRefused);
        bench.clock.advance(Duration::from_millis(100));
    }
    assert!(waiting[0].poll().is_pending());
    // Until 5 s after the first refusal, wakes that are due are sent and have no outcome yet.
    while bench.registry.due().is_some_and(|due| due < rouse_core::time::Moment::from_secs(5)) {
        assert!(waiting[0].poll().is_pending());
        pass(&bench, Duration::from_millis(50));
        fails(&service, StartFailureCause::ScaleRefused);
    }
    bench.clock.advance(Duration::from_secs(5));
    bench.registry.tick();
    fails(&service, StartFailureCause::ScaleRefused);
    assert_eq!(cause(&waiting[0].turned_away()), Some(StartFailureCause::ScaleRefused));
}

#[test]
fn after_a_final_failure_requests_fail_at_once_until_the_next_wake_and_that_one_is_waited_for() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    let mut first = Request::new(&port, 0).waits();
    assert_eq!(bench.engine.wakes(), 1);
    fails(&service, StartFailureCause::CannotRun);
    assert!(cause(&first.turned_away()).is_some());
    drop(first);
    // Within the pause between two wakes.
    for seed in 0..100 {
        assert_eq!(cause(&Request::new(&port, seed).turned_away()), Some(StartFailureCause::CannotRun));
    }
    assert_eq!(bench.engine.wakes(), 1, "never one wake per request");
    let log = bench.registry.cold_starts().newest(None, 200);
    let outcomes: Vec<_> = log.iter().map(|cold| cold.outcome).collect();
    assert_eq!(
        outcomes,
        [ColdStartOutcome::Failed],
        "a request that is turned away at once begins no cold start"
    );
    pass(&bench, Duration::from_secs(1));
    assert_eq!(bench.engine.wakes(), 1, "no request waits");
    // The next request sends a new wake, and waits for its outcome.
    let mut next = Request::new(&port, 7).waits();
    let mut another = Request::new(&port, 8).waits();
    assert_eq!(bench.engine.wakes(), 2);
    service.put_slice("a", ready_slice(1));
    drop((next.served(), another.served()));
}

#[test]
fn a_service_that_was_changed_is_woken_at_once() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    let mut first = Request::new(&port, 0).waits();
    fails(&service, StartFailureCause::CrashLooping);
    assert!(cause(&first.turned_away()).is_some());
    service.start_over();
    assert_eq!(service.wake_failure(), None);
    let waiting = Request::new(&port, 1).waits();
    assert_eq!(bench.engine.wakes(), 2, "without a pause");
    service.start_over();
    assert_eq!(bench.engine.wakes(), 3, "a request waits");
    drop(waiting);
}

#[test]
fn a_failure_that_comes_when_a_pod_is_ready_ends_no_request() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::new(0, 1));
    service.put_slice("a", ready_slice(1));
    let served = Request::new(&port, 0).served();
    let mut waiting = Request::new(&port, 1).waits();
    fails(&service, StartFailureCause::NoScaleTarget);
    assert!(waiting.poll().is_pending(), "it waits for the limit, not for a start");
    drop(served);
    drop(waiting.served());
}

#[test]
fn a_failed_start_is_a_failed_cold_start_and_has_its_true_time() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    let mut waiting = line(&port, 2);
    bench.clock.advance(Duration::from_secs(2));
    fails(&service, StartFailureCause::CrashLooping);
    for request in &mut waiting {
        drop(request.turned_away());
    }
    drop(waiting);
    let log = bench.registry.cold_starts().newest(None, 10);
    let told: Vec<_> = log.iter().map(|cold| (cold.outcome, cold.total().as_secs())).collect();
    assert_eq!(told, [(ColdStartOutcome::Failed, 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_up_to_the_deadline_is_a_failed_cold_start_and_one_that_all_left_is_abandoned() {
    let bench = Bench::new();
    let (_, port) = bench.service("cart", ConcurrencyLimits::default());
    let expire = |seconds: u64| {
        let (port, clock) = (Arc::clone(&port), Arc::clone(&bench.clock));
        async move {
            let ask = rouse_core::service::SlotRequest::default();
            let deadline = async move { clock.advance(Duration::from_secs(seconds)) };
            port.acquire(ask, deadline).await.unwrap_err()
        }
    };
    assert_eq!(expire(5).await, AcquireError::Deadline);
    let left = Request::new(&port, 0).waits();
    bench.clock.advance(Duration::from_secs(3));
    drop(left);
    let log = bench.registry.cold_starts().newest(None, 10);
    let told: Vec<_> = log.iter().map(|cold| (cold.outcome.as_str(), cold.total().as_secs())).collect();
    assert_eq!(told, [("abandoned", 3), ("failed", 5)]);
}

/// A request that is refused at every slot. Returns how its wait ended, and after how long.
fn refused_until_the_end(
    bench: &Bench,
    port: &Arc<rouse_core::service::Port>,
) -> (Option<AcquireError>, Duration) {
    let (mut passed, mut request) = (Duration::ZERO, Request::new(port, 0));
    loop {
        match request.poll() {
            std::task::Poll::Ready(Ok(slot)) => request = Request::again(port, slot.refused(true)),
            std::task::Poll::Ready(Err(error)) => return (Some(error), passed),
            std::task::Poll::Pending if passed > Duration::from_mins(1) => return (None, passed),
            std::task::Poll::Pending => {
                passed += Duration::from_millis(50);
                pass(bench, Duration::from_millis(50));
            }
        }
    }
}

#[test]
fn when_every_ready_pod_has_refused_for_five_seconds_the_wait_is_over_and_a_wake_is_sent() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    service.put_slice("a", ready_slice(2));
    assert_eq!(service.refusing(), []);
    let (ended, after) = refused_until_the_end(&bench, &port);
    assert_eq!(ended, Some(AcquireError::Refused));
    assert!((Duration::from_secs(5)..Duration::from_secs(6)).contains(&after), "{after:?}");
    assert_eq!(service.refusing().len(), 2);
    assert_eq!(bench.engine.wakes(), 1);
    // The next request fails after each pod has refused it once.
    let (ended, after) = refused_until_the_end(&bench, &port);
    assert_eq!((ended, after), (Some(AcquireError::Refused), Duration::ZERO));
    // A pod that accepts again ends the failure.
    let mut slot = Request::new(&port, 0).served();
    slot.connected();
    assert_eq!(service.refusing(), []);
}

#[test]
fn refusals_are_waited_out_while_a_pod_is_starting() {
    let bench = Bench::new();
    let (service, port) = bench.service("cart", ConcurrencyLimits::default());
    service.put_slice("a", slice([(1, READY), (2, STARTING)]));
    assert_eq!(refused_until_the_end(&bench, &port).0, None);
    assert_eq!(service.refusing(), []);
}
