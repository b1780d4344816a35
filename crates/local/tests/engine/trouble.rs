//! Failures of an app are reported, and harm no other app.

use std::collections::HashSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::endpoint::State;
use rouse_core::hold::AcquireError;
use rouse_core::service::SlotRequest;
use rouse_core::start_failure::{StartFailure, StartFailureCause};
use rouse_local::engine::{AppEventKind, AppSpec, AppStatus};
use tokio::time::timeout;

use crate::harness::{
    Bench, GENEROUS, HELPER, app, count, is_exited, is_ready, is_scaled_to_zero, is_started, kill, policy,
    script, serve_after, server, uids,
};

fn reason(bench: &Bench, app: &str) -> String {
    bench.service(app).wake_failure().map(|failure| failure.detail().to_owned()).unwrap_or_default()
}

/// The same with `min` 1, so that it runs without requests.
fn kept_up(mut app: AppSpec) -> AppSpec {
    app.policy = policy(|settings| settings.min = 1);
    app
}

/// Waits for a pod, and returns the failure that ended the wait.
async fn waits_in_vain(bench: &Bench, app: &str) -> Arc<StartFailure> {
    let port = bench.port(app);
    let ended = timeout(GENEROUS, port.acquire(SlotRequest::default(), pending())).await;
    match ended.expect("the wait ends long before any deadline") {
        Err(AcquireError::StartFailed(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_command_that_cannot_run_ends_the_wait_at_the_first_try() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("plain"), "").unwrap();
    let mut elsewhere = server("elsewhere");
    elsewhere.command.workdir = folder.path().join("missing");
    let mut plain = app("plain", &["./plain"]);
    plain.command.workdir = folder.path().into();
    let apps = [app("typo", &["no-such-command"]), elsewhere, plain];
    let mut bench = Bench::new(apps);
    for (name, told) in
        [("typo", "command not found"), ("elsewhere", "does not exist"), ("plain", "not executable")]
    {
        let failure = waits_in_vain(&bench, name).await;
        assert_eq!(failure.cause, StartFailureCause::CannotRun);
        assert!(failure.detail().contains(told), "{failure:?}");
        let seen = bench.until("it is given up", |app, what| app == name && is_scaled_to_zero(what)).await;
        assert_eq!(
            seen.iter().filter(|what| matches!(what, AppEventKind::Failed { .. })).count(),
            1,
            "{seen:?}"
        );
    }
    bench.end().await;
}

#[tokio::test]
async fn the_third_crash_in_a_row_ends_the_wait_and_the_first_two_do_not() {
    let mut bench = Bench::new([script("bad", "echo boom >&2; exit 3")]);
    let failure = waits_in_vain(&bench, "bad").await;
    assert_eq!(failure.cause, StartFailureCause::CrashLooping);
    assert!(
        failure.detail().contains("exited with code 3") && failure.detail().contains("boom"),
        "{failure:?}"
    );
    let seen = bench.until("the third end", {
        let mut ends = 0;
        move |_, what| {
            ends += usize::from(is_exited(what));
            ends == 3
        }
    });
    assert_eq!(seen.await.iter().filter(|what| is_started(what)).count(), 3);
    bench.end().await;
}

#[tokio::test]
async fn an_app_that_crashes_twice_and_then_serves_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut app = script("late", &serve_after("echo x >> starts; [ $(wc -l < starts) -lt 3 ] && exit 1"));
    app.command.workdir = folder.path().into();
    let bench = Bench::new([app]);
    drop(bench.request("late").await);
    bench.end().await;
}

/// An app `bad` that crashed while a request waited, and that the engine no longer starts.
async fn given_up() -> Bench {
    let mut bench = Bench::new([script("bad", "exit 3")]);
    waits_in_vain(&bench, "bad").await;
    bench.until("it is given up", |_, what| is_scaled_to_zero(what)).await;
    bench
}

#[tokio::test]
async fn an_app_that_keeps_crashing_is_not_started_again_while_nothing_waits() {
    let mut bench = given_up().await;
    // The next start would have been 0.4 s after the third.
    let seen = [bench.meanwhile().await, bench.meanwhile().await, bench.meanwhile().await].concat();
    assert_eq!(seen, []);
    let status = bench.status("bad");
    let trouble = status.trouble.unwrap();
    assert!(trouble.contains("3 times in a row; the next request starts it again"), "{trouble}");
    assert_eq!((status.desired, status.pods.len()), (0, 0));
    // In the pause after a failed start, requests fail at once; the first request after it triggers another start.
    let starts = loop {
        assert_eq!(waits_in_vain(&bench, "bad").await.cause, StartFailureCause::CrashLooping);
        let starts = bench.meanwhile().await.iter().filter(|what| is_started(what)).count();
        if starts > 0 {
            break starts;
        }
    };
    assert_eq!(starts, 1, "one is enough");
    bench.end().await;
}

#[tokio::test]
async fn an_app_that_was_given_up_serves_again_once_it_is_changed() {
    let bench = given_up().await;
    bench.apply([server("bad")]);
    drop(bench.request("bad").await);
    assert_eq!(bench.status("bad").trouble, None);
    bench.end().await;
}

#[tokio::test]
async fn a_pod_that_is_killed_comes_back() {
    let mut bench = Bench::new([server("hello")]);
    drop(bench.request("hello").await);
    let before = bench.ready("hello", 1).await;
    bench.until("it is ready", |_, what| is_ready(what)).await;
    kill(before.pods[0].pid);
    let seen = bench.until("it is ready again", |_, what| is_ready(what)).await;
    let [
        AppEventKind::Exited { exit, expected: false, .. },
        AppEventKind::Started { .. },
        AppEventKind::Ready { .. },
    ] = seen.as_slice()
    else {
        panic!("{seen:?}");
    };
    assert_eq!(exit, "was killed by SIGKILL");
    let after = bench.ready("hello", 1).await;
    assert_ne!(uids(&before), uids(&after));
    assert_eq!(after.desired, 1);
    bench.end().await;
}

#[tokio::test]
async fn a_pod_that_crashes_is_started_again_ever_more_slowly_and_the_reason_is_told() {
    let mut bench = Bench::new([kept_up(script("bad", "echo starting; echo boom >&2; echo bye; exit 3"))]);
    let told = "bad-1 exited with code 3; its last line on stderr: \"boom\"";
    let mut at = Vec::new();
    for _ in 0..4 {
        bench.until("it runs", |_, what| is_started(what)).await;
        at.push(tokio::time::Instant::now());
        bench.until("it ends", |_, what| is_exited(what)).await;
        // Set at once, because a waiting request may reach its deadline now.
        assert!(reason(&bench, "bad").contains(told), "{}", reason(&bench, "bad"));
    }
    let pauses: Vec<Duration> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Measured from start to start, and events may arrive late, so only the sum of the pauses is checked.
    assert!(pauses.iter().sum::<Duration>() >= Duration::from_millis(690), "{pauses:?}");
    bench
        .becomes("bad", "crash-looping", |app| {
            app.trouble.as_ref().is_some_and(|trouble| trouble.starts_with(&format!("crash-looping: {told}")))
        })
        .await;
    bench.end().await;
}

#[tokio::test]
async fn a_wake_does_not_cut_the_pause_after_a_crash_short_but_is_told_why() {
    let mut bench = Bench::new([kept_up(script("bad", "exit 3"))]);
    for _ in 0..5 {
        bench.until("it ends", |_, what| is_exited(what)).await;
    }
    // The pause is 1.6 s now.
    for _ in 0..100 {
        bench.wake("bad");
    }
    assert_eq!(bench.meanwhile().await, []);
    assert!(
        reason(&bench, "bad").starts_with("crash-looping: bad-1 exited with code 3, 5 times in a row; next")
    );
    bench.end().await;
}

#[tokio::test]
async fn a_missing_command_is_reported_and_harms_no_other_app() {
    let mut bench = Bench::new([app("none", &["no-such-command"]), server("hello")]);
    bench.wait_in_line("none");
    let seen = bench
        .until("it fails", |app, what| app == "none" && matches!(what, AppEventKind::Failed { .. }))
        .await;
    let Some(AppEventKind::Failed { reason: failed }) = seen.last() else { panic!("{seen:?}") };
    assert!(failed.starts_with("command not found: \"no-such-command\""), "{failed}");
    assert!(reason(&bench, "none").starts_with(failed.as_str()), "{}", reason(&bench, "none"));
    drop(bench.request("hello").await);
    assert!(bench.status("none").trouble.is_some() && bench.status("hello").trouble.is_none());
    // The engine tries again and finds the command once it exists. This takes a new request: the engine gives the app up
    // when the first request has left.
    bench.apply([server("none"), server("hello")]);
    bench.wait_in_line("none");
    bench.ready("none", 1).await;
    assert_eq!(bench.service("none").wake_failure(), None);
    bench.end().await;
}

#[tokio::test]
async fn a_pod_that_never_gets_ready_is_told_with_what_it_said() {
    let mut bench = Bench::new([script("deaf", "echo cannot listen >&2; exec sleep 1000")]);
    bench.wait_in_line("deaf");
    let is_told = |app: &AppStatus| app.trouble.as_ref().is_some_and(|text| text.contains("cannot listen"));
    let status = bench.becomes("deaf", "in trouble", is_told).await;
    let pod = &status.pods[0];
    let begin = format!("deaf-1 (pid {}) runs but is not ready after ", pod.pid);
    let end =
        format!(" s: nothing accepts connections on {}; last line on stderr: \"cannot listen\"", pod.address);
    // On a busy machine some seconds are skipped.
    for told in [status.trouble.unwrap(), reason(&bench, "deaf")] {
        let seconds = told.strip_prefix(&begin).and_then(|rest| rest.strip_suffix(&end));
        assert!(seconds.is_some_and(|seconds| seconds.parse::<u32>().is_ok_and(|it| it >= 1)), "{told}");
    }
    assert_eq!(count(&bench.service("deaf"), State::Starting), 1);
    bench.end().await;
}

/// The lines in an app's log that `rouse` itself wrote.
fn own_lines(bench: &Bench, app: &str) -> Vec<String> {
    let lines = bench.engine.log(app).unwrap().tail().into_iter().filter(|line| &*line.pod == "rouse");
    lines.map(|line| line.text.to_string()).collect()
}

#[tokio::test]
async fn the_log_of_an_app_says_once_why_it_cannot_be_started() {
    let bench = Bench::new([kept_up(app("none", &["no-such-command"])), kept_up(script("mute", "exit 3"))]);
    for name in ["none", "mute"] {
        let again =
            |app: &AppStatus| app.trouble.as_ref().is_some_and(|text| text.contains("3 times in a row"));
        bench.becomes(name, "started three times", again).await;
    }
    let [told] = own_lines(&bench, "none").try_into().unwrap();
    assert!(told.starts_with("command not found: \"no-such-command\""), "{told}");
    assert_eq!(own_lines(&bench, "mute"), ["mute-1 exited with code 3"]);
    // A different reason is logged, and so is the same reason after the app has served.
    bench.apply([kept_up(app("none", &["/no/such/file"])), kept_up(server("mute"))]);
    bench.ready("mute", 1).await;
    bench.apply([kept_up(app("none", &["/no/such/file"])), kept_up(script("mute", "exit 3"))]);
    for name in ["none", "mute"] {
        bench.becomes(name, "told again", |_| own_lines(&bench, name).len() == 2).await;
    }
    assert_eq!(own_lines(&bench, "none")[1], "command not found: there is no /no/such/file");
    bench.end().await;
}

#[tokio::test]
async fn the_log_of_an_app_says_once_that_a_pod_is_not_ready() {
    let mut bench = Bench::new([script("deaf", "exec sleep 1000")]);
    bench.wait_in_line("deaf");
    let mut told = HashSet::new();
    let is_told_twice = |app: &AppStatus| {
        told.extend(app.trouble.clone());
        told.len() >= 2
    };
    let status = bench.becomes("deaf", "in trouble for two different times", is_told_twice).await;
    let pod = &status.pods[0];
    let told = format!(
        "deaf-1 (pid {}) runs but is not ready yet: nothing accepts connections on {}",
        pod.pid, pod.address
    );
    assert_eq!(own_lines(&bench, "deaf"), [told]);
    bench.end().await;
}

#[tokio::test]
async fn what_a_namesake_said_is_not_quoted() {
    let folder = tempfile::tempdir().unwrap();
    let mut app = script("once", "[ -e there ] && exec sleep 1000; touch there; echo boom >&2; exit 1");
    app.command.workdir = folder.path().into();
    let mut bench = Bench::new([app]);
    bench.wait_in_line("once");
    let told = |text: &str| text.starts_with("once-1 (pid") && !text.contains("boom");
    bench.becomes("once", "not ready", |app| app.trouble.as_deref().is_some_and(told)).await;
    bench.end().await;
}

#[tokio::test]
async fn a_pod_that_cannot_listen_any_more_is_not_ready_any_more() {
    // The server ends, the pod does not.
    let mut app = script("lame", &format!("{HELPER} serve & echo $! >&2; wait; sleep 1000"));
    app.policy = policy(|settings| settings.min = 1);
    let mut bench = Bench::new([app]);
    bench.ready("lame", 1).await;
    let log = bench.engine.log("lame").unwrap();
    kill(log.tail().iter().find_map(|line| line.text.parse().ok()).unwrap());
    bench
        .becomes("lame", "not ready", |app| {
            app.trouble
                .as_deref()
                .is_some_and(|text| text.contains("runs but is not ready any more (for 1 s)"))
        })
        .await;
    let seen = bench.meanwhile().await;
    assert!(!seen.iter().any(is_exited), "{seen:?}");
    bench.end().await;
}
