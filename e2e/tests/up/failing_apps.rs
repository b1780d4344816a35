//! Apps that fail to start: the response, `rouse status` and the terminal all give the reason.

use std::time::Duration;

use rouse_e2e::client::session::{FullResponse, get};
use rouse_e2e::rouse::{Launch, Rouse};
use rouse_e2e::wait::eventually;
use tokio::time::timeout;

use crate::fixture::{ask, facts, printed, programs, status, test_app, up, yaml};

pub(crate) async fn a_script_that_never_gets_ready_is_explained_with_its_own_words() {
    let script = "  stuck:\n    command: [sh, -c, 'echo the database is away >&2; exec sleep 600']\n    \
                  timeouts: {readiness: 5s}\n";
    let rouse = up(script).await;
    let answer = ask(&rouse, "stuck", "/").await;
    assert_eq!((answer.status.as_u16(), answer.header("x-rouse-error")), (504, "readiness_timeout"));
    let told = [answer.text(), status(&rouse).await, facts(&rouse, "stuck").await["trouble"].to_string()];
    for text in told {
        for part in [
            "stuck-1",
            "is not ready after",
            "nothing accepts connections on 127.0.0.1:",
            "the database is away",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }
    let line = |line: &str| (line == "stuck-1 | the database is away").then_some(());
    rouse.output.find("the script's line", line).await;
    rouse.stop().await;
}

pub(crate) async fn an_app_that_listens_elsewhere_is_told_where_and_what_to_do() {
    let (app, port) = (test_app(), free_port());
    let rouse = up(&format!(
        "  web: {{command: [sh, -c, 'HOST=127.0.0.1 exec {app}'], port: {port}, timeouts: {{readiness: 3s}}}}\n  \
         other: {{command: [sh, -c, 'PORT={port} HOST=127.0.0.9 exec {app}'], timeouts: {{readiness: 3s}}}}\n"
    ))
    .await;
    let (web, other) = tokio::join!(ask(&rouse, "web", "/"), ask(&rouse, "other", "/"));
    let expected = format!("it listens on 127.0.0.1:{port} instead of 127.");
    assert!(web.text().contains(&expected) && web.text().contains(": bind $HOST"), "{}", web.text());
    let expected = format!("it listens on 127.0.0.9:{port} instead of 127.0.0.1:");
    assert!(other.text().contains(&expected) && other.text().contains("use $PORT"), "{}", other.text());
    rouse.stop().await;
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

pub(crate) async fn a_command_that_does_not_exist_is_explained_while_others_serve() {
    let app = test_app();
    let rouse = up(&format!(
        "  typo: {{command: [no-such-program], timeouts: {{readiness: 1s}}}}\n  good: {{command: [{app}]}}\n"
    ))
    .await;
    printed(&rouse, "warning: typo: command not found: \"no-such-program\"", 1).await;
    let (wrong, right) = tokio::join!(ask(&rouse, "typo", "/"), ask(&rouse, "good", "/"));
    assert_eq!(right.status, 200);
    assert!(matches!(wrong.status.as_u16(), 503 | 504), "{wrong:?}");
    for text in [wrong.text(), status(&rouse).await] {
        assert!(text.contains("command not found: \"no-such-program\""), "{text}");
    }
    printed(&rouse, "typo: cannot start a pod: command not found: \"no-such-program\"", 1).await;
    assert_eq!(ask(&rouse, "good", "/").await.status, 200);
    rouse.stop().await;
}

/// Much less than the readiness timeout of `rouse up`, 30 s, and enough for a busy machine.
const LONG_BEFORE: Duration = Duration::from_secs(20);

/// The answer to a request for an app that cannot start.
async fn refused(rouse: &Rouse, app: &str) -> FullResponse {
    let answer = timeout(LONG_BEFORE, ask(rouse, app, "/")).await.expect("an answer long before the timeout");
    assert_eq!((answer.status.as_u16(), answer.header("x-rouse-error")), (503, "start_failed"), "{answer:?}");
    assert_eq!(answer.header("retry-after"), "10");
    answer
}

pub(crate) async fn an_app_that_cannot_start_is_answered_at_once_and_serves_when_the_file_is_corrected() {
    let rouse = up("  app: {command: [no-such-program]}\n").await;
    let told = refused(&rouse, "app").await.text();
    assert!(told.contains("command not found: \"no-such-program\""), "{told}");
    eventually("the failed cold start, and the app given up", async || {
        let text = status(&rouse).await;
        let parts = ["local/app  failed after", "the next request starts it again"];
        parts.iter().all(|part| text.contains(part)).then_some(())
    })
    .await;
    rouse.replace_file(&yaml(&format!("  app: {{command: [{}]}}\n", test_app())));
    eventually("the trouble to be forgotten", async || facts(&rouse, "app").await["trouble"].as_null()).await;
    let answer = ask(&rouse, "app", "/").await;
    assert_eq!((answer.status.as_u16(), answer.header("x-rouse-cold-start")), (200, "true"));
    rouse.stop().await;
}

pub(crate) async fn an_app_that_ends_at_once_is_answered_at_its_third_end_and_not_started_again() {
    let apps = "  quitter: {command: [sh, -c, 'echo x >> starts; echo no mood today >&2; exit 3']}\n";
    let rouse = up(apps).await;
    let told = refused(&rouse, "quitter").await.text();
    for part in ["crash-looping", "exited with code 3", "3 times in a row", "no mood today"] {
        assert!(told.contains(part), "no {part:?} in {told}");
    }
    let state = async || Some(facts(&rouse, "quitter").await).filter(|facts| facts["state"] == "zero");
    let facts = eventually("the app to be given up", state).await;
    assert!(facts["trouble"].to_string().contains("the next request starts it again"), "{facts}");
    let starts = || std::fs::read_to_string(rouse.dir().join("starts")).unwrap_or_default().lines().count();
    assert_eq!(starts(), 3);
    // In the pause after a failed start, requests fail at once; the first request after it triggers another start.
    eventually("one start for the next request", async || {
        refused(&rouse, "quitter").await;
        (starts() > 3).then_some(())
    })
    .await;
    assert_eq!(starts(), 4);
    rouse.stop().await;
}

pub(crate) async fn an_app_that_takes_long_to_start_is_waited_for() {
    let app = test_app();
    let apps = format!("  slow: {{command: [sh, -c, 'sleep 7; exec \"$APP\"'], env: {{APP: {app}}}}}\n");
    let rouse = up(&apps).await;
    assert_eq!(ask(&rouse, "slow", "/").await.status, 200);
    rouse.stop().await;
}

pub(crate) async fn who_asks_for_a_public_name_is_not_told_paths() {
    let rouse = up("  app: {command: [no-such-program], hosts: [app.localhost, app.example.com]}\n").await;
    assert!(refused(&rouse, "app").await.text().contains("is in no directory of PATH"));
    let told = get(&rouse.target(false).with_host("app.example.com"), "/").await;
    assert_eq!(told.header("x-rouse-error"), "start_failed");
    let text = told.text();
    assert!(text.contains("its command cannot be run (cannot_run); see `rouse logs app`"), "{text}");
    assert!(!text.contains("PATH") && !text.contains("no-such-program"), "{text}");
    rouse.stop().await;
}

/// Records when it was started, in milliseconds, and runs only once the file `ok` exists.
const MOODY: &str = "
echo $(($(date +%s%N) / 1000000)) >> starts
test -e ok || { echo no mood today >&2; exit 3; }
exec \"$APP\"
";

pub(crate) async fn an_app_that_keeps_crashing_is_started_ever_more_slowly_until_it_recovers() {
    let app = test_app();
    let apps = format!("  moody: {{command: [sh, moody.sh], env: {{APP: {app}}}, scale: {{min: 1}}}}\n");
    let rouse = Launch::of(&yaml(&apps)).file("moody.sh", MOODY).up(&programs()).await;
    let looping = eventually("a crash loop", async || {
        Some(status(&rouse).await).filter(|text| text.contains("crash-looping"))
    })
    .await;
    for part in ["moody-1 exited with code 3", "\"no mood today\"", "times in a row; "] {
        assert!(looping.contains(part), "no {part:?} in {looping}");
    }
    let starts = eventually("the fifth start", async || {
        let text = std::fs::read_to_string(rouse.dir().join("starts")).unwrap_or_default();
        let starts: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
        (starts.len() >= 5).then_some(starts)
    })
    .await;
    let pauses: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (pause, least) in pauses.iter().zip([100, 200, 400, 800]) {
        assert!(*pause >= least, "the pauses do not grow: {pauses:?}");
    }
    assert!(rouse.output.lines().contains(&"moody-1 | no mood today".to_owned()));

    std::fs::write(rouse.dir().join("ok"), "").unwrap();
    // The first request may still wait for an earlier start, which crashes and fails it.
    eventually("a request to be served after the recovery", async || {
        let answer = ask(&rouse, "moody", "/").await;
        assert!([200, 503].contains(&answer.status.as_u16()), "{answer:?}");
        (answer.status == 200).then_some(())
    })
    .await;
    eventually("the trouble to be forgotten", async || facts(&rouse, "moody").await["trouble"].as_null())
        .await;
    assert!(!status(&rouse).await.contains("crash-looping"));
    rouse.stop().await;
}
