//! `rouse logs`, `scale`, `restart` and `status`, typed at a shell.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::Stdio;

use rouse_e2e::command::run;
use rouse_e2e::config::{App, Config};
use rouse_e2e::output::Output;
use rouse_e2e::rouse::Rouse;
use rouse_e2e::wait::{eventually, within};
use rustix::process::Signal;
use tokio::process::Command;

use crate::fixture::{ask, facts, programs, row, test_app, uid, until_state, up};

pub(crate) async fn logs_are_those_of_the_app_and_can_be_followed() {
    let app = test_app();
    let rouse = up(&format!(
        "  loud: {{command: [sh, -c, 'echo in; echo err >&2; exec {app}'], env: {{LOG_LISTENING: '1'}}}}\n  \
         other: {{command: [sh, -c, 'echo other; exec {app}']}}\n"
    ))
    .await;
    assert_eq!(rouse.ask(&programs(), &["logs", "loud"]).await.ok(), "", "it has not said anything yet");
    let mut following = rouse.asking(&programs(), &["logs", "loud", "-f"]);
    let mut following = following.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let followed = Output::of(&mut following);
    for app in ["loud", "other"] {
        assert_eq!(ask(&rouse, app, "/").await.status, 200);
    }
    let line = |text: &'static str| move |line: &str| (line == text).then_some(());
    followed.find("a followed line", line("loud-1 | in")).await;
    followed.find("a followed line of stderr", line("loud-1 | err")).await;
    let kept = eventually("what it says later", async || {
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
        for part in [format!("nobody listens on {address}"), "rouse up".to_owned(), "--admin".to_owned()] {
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
