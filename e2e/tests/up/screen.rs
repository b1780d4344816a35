//! The output of `rouse up`, into a pipe and on a terminal.

use std::process::Stdio;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use rouse_e2e::output::Output;
use rouse_e2e::proc::{self, Process};
use rouse_e2e::rouse::Launch;
use rouse_e2e::wait::within;
use rustix::process::Signal;
use tokio::process::Command;

use crate::fixture::{ask, printed, programs, test_app, up, yaml};

fn colourful() -> String {
    let app = test_app();
    format!(
        "  app: {{command: [sh, -c, 'printf \"\\033[31mred\\033[0m\\n\"; exec {app}'], scale: {{min: 1}}}}\n"
    )
}

pub(crate) async fn piped_output_is_plain_and_says_where_it_listens_before_a_pod_says_anything() {
    let rouse = up(&colourful()).await;
    assert_eq!(ask(&rouse, "app", "/").await.status, 200);
    printed(&rouse, "app-1 | red", 1).await;
    printed(&rouse, "app: app-1 ready after ", 1).await;
    let lines = rouse.output.lines();
    assert!(lines.iter().all(|line| !line.contains('\u{1b}')), "{lines:?}");
    let place = |part: &str| lines.iter().position(|line| line.starts_with(part)).unwrap();
    for listening in [place("listening on http://"), place("admin on http://")] {
        assert!(listening < place("app-1 | red") && listening < place("app: app-1 ready"), "{lines:#?}");
    }
    rouse.stop().await;
}

pub(crate) async fn nothing_is_printed_before_where_it_listens() {
    let app = test_app();
    let apps: Vec<String> =
        ["a", "b", "c"].map(|name| format!("  {name}: {{command: [{app}], scale: {{min: 1}}}}\n")).into();
    let apps = apps.concat();
    // 100 at the same time: a race shows when there are more processes than cores.
    let mut starting: FuturesUnordered<_> = (0..100).map(|_| up(&apps)).collect();
    while let Some(rouse) = starting.next().await {
        let lines = rouse.output.lines();
        assert_eq!(lines[0], format!("listening on http://{}", rouse.address), "{lines:#?}");
        assert_eq!(lines[1], format!("admin on http://{}", rouse.admin.address()), "{lines:#?}");
    }
}

pub(crate) async fn a_terminal_gets_colours() {
    let launch = Launch::of(&yaml(&colourful()));
    let folder = launch.path("");
    let mut script = Command::new("script");
    let rouse = programs().rouse;
    script
        .args(["--quiet", "--return", "--command", &format!("exec '{}' up", rouse.display()), "/dev/null"])
        .current_dir(&folder)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .env_remove("CLICOLOR")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut script = script.spawn().unwrap();
    let mut output = Output::of(&mut script);
    let coloured = |line: &str| (line.contains("app-1 |") && line.contains("\u{1b}[31mred")).then_some(());
    output.find("the pod's own colour", coloured).await;
    let bold = |line: &str| line.contains("listening on \u{1b}[1mhttp://").then_some(());
    output.find("a bold address", bold).await;
    // `script` is the parent of the terminal's program.
    let below = proc::descendants(script.id().unwrap());
    let rouse = below.iter().find(|process| process.parent() == script.id()).copied();
    let rouse: Process = rouse.expect("rouse runs");
    proc::signal(rouse.pid, Signal::TERM);
    let status = within("the terminal to end", script.wait()).await.unwrap();
    output.complete().await;
    assert_eq!(status.code(), Some(0), "{:#?}", output.lines());
    assert!(below.iter().all(|process| !process.runs()), "{below:?}");
}
