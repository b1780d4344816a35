//! The quickstart: the built-in demo with its printed curl commands, and `rouse status` from zero to serving and back.

use rouse_e2e::client::session::{Http, whole};
use rouse_e2e::command::run;
use rouse_e2e::config::{App, Config};
use rouse_e2e::proc::Process;
use rouse_e2e::rouse::{Launch, Rouse};
use rouse_e2e::wait::eventually;
use tokio::process::Command;
use tokio::task::JoinSet;

use crate::fixture::{ask, pids, printed, programs, until_state, way};

/// Runs the `curl …` command that `rouse up` printed for an app. Returns head and body of the response.
async fn printed_curl(rouse: &Rouse, app: &str) -> String {
    let invitation = |line: &str| {
        let command = line.strip_prefix(&format!("{app}: "))?.split("   or").next()?;
        command.starts_with("curl -H").then(|| command.to_owned())
    };
    let curl = rouse.output.find("the invitation", invitation).await;
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("{curl} --silent --show-error --include --max-time 60")).env("no_proxy", "*");
    run(shell).await.ok()
}

pub(crate) async fn without_a_file_the_demo_runs_and_the_commands_that_it_prints_work() {
    let launch =
        ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"].iter().fold(Launch::empty(), Launch::argument);
    let rouse = launch.up(&programs()).await;
    printed(&rouse, "built-in demo", 1).await;
    for app in ["hello", "slow"] {
        until_state(&rouse, app, "zero").await;
        let (first, second) = (printed_curl(&rouse, app).await, printed_curl(&rouse, app).await);
        for (answer, cold) in [(first, "true"), (second, "false")] {
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
            let head = answer.to_lowercase();
            assert!(head.contains(&format!("x-rouse-cold-start: {cold}\r\n")), "{answer}");
            assert!(answer.contains(&format!("Hello from {app}!")), "{answer}");
        }
        until_state(&rouse, app, "serving").await;
        printed(&rouse, &format!("{app}: cold start "), 1).await;
    }
    rouse.stop().await;
}

pub(crate) async fn status_shows_each_step_from_zero_to_serving_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let gate = dir.path().join("open");
    let app = App::http().scale("idle-after", "1s").env("START_GATE", gate.display());
    let rouse = Rouse::start(&programs(), Config::of(app)).await;
    let zero = until_state(&rouse, "app", "zero").await;
    assert!(
        zero["endpoints"].as_array().unwrap().is_empty() && pids(&rouse, "app").await.is_empty(),
        "{zero}"
    );

    let mut asked = JoinSet::new();
    let target = way(&rouse, "app");
    asked.spawn(async move {
        let mut http = Http::one(&target).await;
        let request = http.request(http::Method::GET, "/sse/2/next").body(rouse_e2e::body::empty()).unwrap();
        let response = http.send(request).await;
        (http, response)
    });
    let waking = until_state(&rouse, "app", "waking").await;
    assert_eq!((&waking["holds"], &waking["ready"]), (&1.into(), &0.into()), "{waking}");

    std::fs::write(&gate, "").unwrap();
    let (_http, stream) = asked.join_next().await.unwrap().unwrap();
    assert_eq!(
        (stream.status().as_u16(), &stream.headers()["x-rouse-cold-start"]),
        (200, &"true".parse().unwrap())
    );
    let serving = until_state(&rouse, "app", "serving").await;
    assert_eq!((&serving["in_flight"], &serving["ready"]), (&1.into(), &1.into()), "{serving}");
    let warm = ask(&rouse, "app", "/next").await;
    assert_eq!((warm.status.as_u16(), warm.header("x-rouse-cold-start")), (200, "false"));
    let pod = Process::of(pids(&rouse, "app").await[0]).unwrap();
    whole(stream).await.unwrap();

    until_state(&rouse, "app", "zero").await;
    eventually("the process to be gone", async || (!pod.runs()).then_some(())).await;
    rouse.stop().await;
}
