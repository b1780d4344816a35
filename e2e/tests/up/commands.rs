//! The commands `rouse logs`, `scale`, `restart` and `status` against a running `rouse up`.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::Stdio;

use rouse_e2e::command::run;
use rouse_e2e::config::{App, Config};
use rouse_e2e::output::Output;
use rouse_e2e::rouse::{Launch, Rouse};
use rouse_e2e::wait::{eventually, within};
use rustix::process::Signal;
use tokio::process::Command;

use crate::fixture::{ask, facts, programs, row, test_app, uid, until_state, up, yaml};

pub(crate) async fn logs_are_those_of_the_app_and_can_be_followed() {
    let app = test_app();
    let rouse = up(&format!(
        "  loud: {{command: [sh, -c, 'echo in; echo err >&2; exec {app}'], env: {{LOG_LISTENING: '1'}}}}\n  \
         other: {{command: [sh, -c, 'echo other; exec {app}']}}\n"
    ))
    .await;
    assert_eq!(rouse.ask(&programs(), &["logs", "loud"]).await.ok(), "", "the app has printed nothing yet");
    let mut following = rouse.asking(&programs(), &["logs", "loud", "-f"]);
    let mut following = following.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let followed = Output::of(&mut following);
    for app in ["loud", "other"] {
        assert_eq!(ask(&rouse, app, "/").await.status, 200);
    }
    let line = |text: &'static str| move |line: &str| (line == text).then_some(());
    followed.find("a followed line", line("loud-1 | in")).await;
    followed.find("a followed line of stderr", line("loud-1 | err")).await;
    let kept = eventually("its later lines", async || {
        let kept = rouse.ask(&programs(), &["logs", "loud"]).await.ok();
        kept.contains("loud-1 | listening ").then_some(kept)
    })
    .await;
    assert!(kept.contains("loud-1 | in\n") && kept.contains("loud-1 | err\n"), "{kept}");
    assert!(!kept.contains("other") && !followed.lines().join("\n").contains("other"), "{kept}");

    rouse.signal(Signal::TERM);
    let status = within("the following to end with rouse", following.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0), "{:?}", followed.lines());
    rouse.stopped(&[]).await;
}

/// A script that prints `lines` lines at once, and then becomes the test app.
fn burst(lines: usize, width: usize) -> String {
    format!("[sh, -c, 'seq -f %0{width}.0f 1 {lines}; exec {}']", test_app())
}

/// The numbers that pod 1 of `loud` printed.
fn numbers<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<usize> {
    lines.into_iter().filter_map(|line| line.strip_prefix("loud-1 | ")?.parse().ok()).collect()
}

pub(crate) async fn a_burst_of_output_is_shown_and_kept_and_followed_whole() {
    let rouse = up(&format!("  loud: {{command: {}}}\n", burst(2000, 4))).await;
    let mut following = rouse.asking(&programs(), &["logs", "loud", "-f"]);
    let mut following = following.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let followed = Output::of(&mut following);
    assert_eq!(ask(&rouse, "loud", "/").await.status, 200);
    let all: Vec<usize> = (1..=2000).collect();
    for output in [&rouse.output, &followed] {
        output.find("the last line", |line| (line == "loud-1 | 2000").then_some(())).await;
        assert_eq!(numbers(output.lines().iter().map(String::as_str)), all);
    }
    let kept = rouse.ask(&programs(), &["logs", "loud"]).await.ok();
    assert_eq!(numbers(kept.lines()), all);
    rouse.stop().await;
}

pub(crate) async fn a_viewer_that_does_not_read_holds_up_no_app_and_is_told_what_it_missed() {
    // Far more than the log keeps, and more than pipes and sockets buffer.
    let rouse = up(&format!("  loud: {{command: {}}}\n", burst(30_000, 1000))).await;
    let mut following = rouse.asking(&programs(), &["logs", "loud", "-f"]);
    let mut following = following.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert_eq!(ask(&rouse, "loud", "/").await.status, 200, "the app serves after it has printed everything");
    let followed = Output::of(&mut following);
    let missed = |line: &str| {
        let (count, _) = line.strip_prefix("… ")?.split_once(" lines not shown")?;
        count.parse::<usize>().ok()
    };
    followed.find("the last line", |line| line.ends_with("30000").then_some(())).await;
    let (lines, all) = (followed.lines(), 30_000);
    let seen = numbers(lines.iter().map(String::as_str));
    let missed: usize = lines.iter().filter_map(|line| missed(line)).sum();
    // One line more if the app started so slowly that its log mentions it.
    let known = seen.len() + missed;
    assert!(missed > 0 && (all..=all + 1).contains(&known), "{} seen and {missed} missed", seen.len());
    assert!(seen.is_sorted(), "no line is repeated or out of order");
    rouse.stop().await;
}

pub(crate) async fn a_folder_for_logs_gets_every_line_of_every_app() {
    let apps =
        format!("  loud: {{command: {}}}\n  other: {{command: {}}}\n", burst(30_000, 1000), burst(1, 1));
    let rouse = Launch::of(&format!("logs: printed/here\n{}", yaml(&apps))).up(&programs()).await;
    for app in ["loud", "other"] {
        assert_eq!(ask(&rouse, app, "/").await.status, 200);
    }
    let (loud, other) =
        (rouse.dir().join("printed/here/loud.log"), rouse.dir().join("printed/here/other.log"));
    let whole = eventually("the last line", async || {
        let text = std::fs::read_to_string(&loud).unwrap();
        text.contains("030000\n").then_some(text)
    })
    .await;
    assert_eq!(numbers(whole.lines()), (1..=30_000).collect::<Vec<_>>());
    assert_eq!(std::fs::read_to_string(other).unwrap(), "other-1 | 1\n");
    rouse.stop().await;
}

async fn ready(rouse: &Rouse, count: usize) -> Vec<String> {
    let service = rouse
        .admin
        .until("app", &format!("{count} ready pods, and no other"), |app| {
            app.endpoints.len() == count && app.endpoints.iter().all(|pod| pod.state == "Ready")
        })
        .await;
    service.endpoints.into_iter().map(|pod| pod.uid).collect()
}

pub(crate) async fn scale_pins_and_auto_lets_go_to_zero() {
    let app = App::http().scale("max", 3).scale("idle-after", "1s");
    let rouse = Rouse::start(&programs(), Config::of(app)).await;
    let said = rouse.ask(&programs(), &["scale", "app", "2"]).await.ok();
    assert!(said.contains("app: stays at 2"), "{said}");
    ready(&rouse, 2).await;
    assert_eq!(facts(&rouse, "app").await["pinned"], 2);
    let line = row(&rouse, "app").await;
    assert_eq!((line[1].as_str(), line[2].as_str()), ("serving", "2/2"));
    assert!(line.join(" ").contains("pinned"), "{line:?}");

    let said = rouse.ask(&programs(), &["scale", "app", "auto"]).await.ok();
    assert!(said.contains("the autoscaler decides again"), "{said}");
    until_state(&rouse, "app", "zero").await;
    assert!(facts(&rouse, "app").await["pinned"].is_null());

    ready_by_request(&rouse).await;
    let said = rouse.ask(&programs(), &["scale", "app", "0"]).await.ok();
    assert!(said.contains("the next request wakes it"), "{said}");
    until_state(&rouse, "app", "zero").await;
    ready_by_request(&rouse).await;
    rouse.stop().await;
}

async fn ready_by_request(rouse: &Rouse) {
    let answer = ask(rouse, "app", "/").await;
    assert_eq!((answer.status.as_u16(), answer.header("x-rouse-cold-start")), (200, "true"));
}

pub(crate) async fn restart_replaces_each_pod_and_says_so() {
    let app = App::http().scale("min", 2).scale("max", 2);
    let rouse = Rouse::start(&programs(), Config::of(app)).await;
    let before: BTreeSet<String> = ready(&rouse, 2).await.into_iter().collect();
    let said = rouse.ask(&programs(), &["restart", "app"]).await.ok();
    assert!(said.ends_with("app: 2 of 2 pods replaced\n"), "{said}");
    let after = ready(&rouse, 2).await;
    assert!(after.iter().all(|uid| !before.contains(uid)), "{before:?} and {after:?}");
    assert!(after.contains(&uid(&rouse, "app").await));
    rouse.stop().await;
}

pub(crate) async fn without_a_rouse_up_commands_say_what_to_do() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for arguments in [&["status"][..], &["logs", "app"], &["scale", "app", "1"], &["restart", "app"]] {
        let mut command = Command::new(programs().rouse);
        command.args(arguments).args(["--admin", &address]);
        let ran = run(command).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        for part in [format!("nothing listens on {address}"), "rouse up".to_owned(), "--admin".to_owned()] {
            assert!(ran.stderr.contains(&part), "no {part:?} in {}", ran.stderr);
        }
    }
}

pub(crate) async fn an_unknown_app_is_bad_usage_and_the_known_ones_are_named() {
    let config = Config::of(App::http().named("web")).and(App::http().named("api"));
    let rouse = Rouse::start(&programs(), config).await;
    for arguments in
        [&["logs", "wed"][..], &["logs", "wed", "-f"], &["scale", "wed", "1"], &["restart", "wed"]]
    {
        let ran = rouse.ask(&programs(), arguments).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{arguments:?}: {ran:?}");
        assert!(["wed", "web", "api"].iter().all(|name| ran.stderr.contains(name)), "{ran:?}");
    }
    let ran = rouse.ask(&programs(), &["scale", "web", "many"]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("many") && ran.stderr.contains("auto"), "{ran:?}");
    rouse.stop().await;
}
