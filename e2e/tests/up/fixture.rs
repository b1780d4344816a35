//! Shared helpers: a `rouse.yaml` for the trials, requests to an app, and `rouse status` as text and as JSON.

use rouse_e2e::client::session::{FullResponse, get};
use rouse_e2e::rouse::{Launch, Rouse};
use rouse_e2e::target::Target;
use rouse_e2e::wait::eventually;
use rouse_e2e::{Programs, programs};
use serde_json::{Value, json};

pub(crate) fn programs() -> Programs {
    programs!()
}

/// A file with these apps, each indented by two.
pub(crate) fn yaml(apps: &str) -> String {
    format!("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\napps:\n{apps}")
}

/// The test app, as the file names it.
pub(crate) fn test_app() -> String {
    json!(programs().app.to_string_lossy()).to_string()
}

/// `rouse up` with these apps.
pub(crate) async fn up(apps: &str) -> Rouse {
    Launch::of(&yaml(apps)).up(&programs()).await
}

/// The target of an app.
pub(crate) fn way(rouse: &Rouse, app: &str) -> Target {
    rouse.target(false).with_host(&format!("{app}.localhost"))
}

/// GET of an app.
pub(crate) async fn ask(rouse: &Rouse, app: &str, path: &str) -> FullResponse {
    get(&way(rouse, app), path).await
}

/// What `rouse status` prints.
pub(crate) async fn status(rouse: &Rouse) -> String {
    rouse.ask(&programs(), &["status"]).await.ok()
}

/// The cells of an app's line in `rouse status`.
pub(crate) async fn row(rouse: &Rouse, app: &str) -> Vec<String> {
    let (text, name) = (status(rouse).await, format!("local/{app}"));
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(&name));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).split_whitespace().map(str::to_owned).collect()
}

/// An app in `rouse status -o json`.
pub(crate) async fn facts(rouse: &Rouse, app: &str) -> Value {
    let text = rouse.ask(&programs(), &["status", "-o", "json"]).await.ok();
    let all: Vec<Value> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    let found = all.iter().find(|one| one["service"] == format!("local/{app}"));
    found.unwrap_or_else(|| panic!("no {app} in {text}")).clone()
}

/// Waits until `rouse status` shows the app in `state`, as text and as JSON.
pub(crate) async fn until_state(rouse: &Rouse, app: &str, state: &str) -> Value {
    let what = format!("{app} to be {state}");
    eventually(&what, async || (row(rouse, app).await[1] == state).then_some(())).await;
    eventually(&what, async || Some(facts(rouse, app).await).filter(|facts| facts["state"] == state)).await
}

/// Waits until rouse has printed a line like this one `count` times.
pub(crate) async fn printed(rouse: &Rouse, line: &str, count: usize) {
    eventually(&format!("{line:?} {count} times"), async || {
        (rouse.output.lines().iter().filter(|said| said.contains(line)).count() >= count).then_some(())
    })
    .await;
}

/// The UID of the pod that answers for the app now.
pub(crate) async fn uid(rouse: &Rouse, app: &str) -> String {
    let answer = ask(rouse, app, "/").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.text().split_whitespace().next().unwrap_or_default().to_owned()
}

/// The pids of an app's pods.
pub(crate) async fn pids(rouse: &Rouse, app: &str) -> Vec<u32> {
    rouse.admin.service(app).await.endpoints.iter().filter_map(|pod| pod.pid).collect()
}
