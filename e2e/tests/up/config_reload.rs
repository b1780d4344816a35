//! Valid changes of `rouse.yaml` while `rouse up` runs.

use std::fs::File;

use rouse_e2e::client::session::{get, get_many};
use rouse_e2e::config::{App, Config};
use rouse_e2e::proc::Process;
use rouse_e2e::rouse::{Launch, Rouse};
use rouse_e2e::target::Target;
use rouse_e2e::wait::eventually;
use rustix::process::Signal;

use crate::fixture::{ask, facts, pids, printed, programs, uid, way};

fn file(apps: impl IntoIterator<Item = App>) -> String {
    apps.into_iter().fold(Config::default(), Config::and).yaml(&programs())
}

async fn up(apps: impl IntoIterator<Item = App>) -> Rouse {
    Launch::of(&file(apps)).up(&programs()).await
}

pub(crate) async fn an_app_that_is_added_serves_and_one_that_is_removed_ends() {
    let [old, new] = ["old", "new"].map(|name| App::http().named(name));
    let stays = App::http().warm().named("stays");
    let rouse = up([stays.clone(), old]).await;
    let before = uid(&rouse, "stays").await;
    uid(&rouse, "old").await;
    let gone = Process::of(pids(&rouse, "old").await[0]).unwrap();
    assert_eq!(ask(&rouse, "new", "/").await.header("x-rouse-error"), "no_route");

    rouse.replace_file(&file([stays, new]));
    printed(&rouse, "reloaded rouse.yaml", 1).await;
    let answer = ask(&rouse, "old", "/").await;
    assert_eq!((answer.status.as_u16(), answer.header("x-rouse-error")), (404, "no_route"));
    uid(&rouse, "new").await;
    eventually("the removed app's process to end", async || (!gone.runs()).then_some(())).await;
    eventually("the removed app to be forgotten", async || {
        let services = rouse.admin.services().await;
        services.iter().all(|service| service.service != "local/old").then_some(())
    })
    .await;
    assert_eq!(uid(&rouse, "stays").await, before);
    rouse.stop().await;
}

pub(crate) async fn an_app_that_is_removed_finishes_its_requests_first() {
    let rouse = up([App::http().named("stays"), App::http().named("old")]).await;
    let mut asked = get_many(&way(&rouse, "old"), "/wait", 1);
    let serving = rouse.admin.until("old", "a request under way", |old| old.in_flight == 1).await;
    let pod = serving.endpoints[0].address;
    rouse.replace_file(&file([App::http().named("stays")]));
    printed(&rouse, "reloaded rouse.yaml", 1).await;
    assert_eq!(ask(&rouse, "old", "/").await.status, 404);
    // Directly: no route leads to this pod any more.
    assert_eq!(get(&Target::plain(pod), "/next").await.status, 200);
    let answer = asked.join_next().await.unwrap().unwrap();
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, "waited\n"));
    printed(&rouse, "old: removed", 1).await;
    rouse.stop().await;
}

pub(crate) async fn another_scale_restarts_nothing() {
    let rouse = up([App::http().warm().scale("max", 2)]).await;
    let before = uid(&rouse, "app").await;
    rouse.replace_file(&file([App::http().scale("min", 2).scale("max", 2).scale("idle-after", "5m")]));
    let pods = eventually("two pods, and no replacement under way", async || {
        let facts = facts(&rouse, "app").await;
        let settled = facts["ready"] == 2 && facts["rolling"] == false;
        settled.then(|| facts["endpoints"].as_array().cloned().unwrap_or_default())
    })
    .await;
    assert!(pods.iter().any(|pod| pod["uid"] == before.as_str()), "{pods:?}");
    assert!(!rouse.output.lines().iter().any(|line| line.contains("is stopping")));
    rouse.stop().await;
}

pub(crate) async fn another_environment_replaces_the_pods() {
    let rouse = up([App::http().warm()]).await;
    let before = uid(&rouse, "app").await;
    rouse.replace_file(&file([App::http().warm().env("LOG_LISTENING", 1)]));
    printed(&rouse, "app: all pods are replaced", 1).await;
    assert_ne!(uid(&rouse, "app").await, before);
    printed(&rouse, " | listening ", 1).await;
    rouse.stop().await;
}

pub(crate) async fn sighup_reads_the_file_again() {
    let [one, two] = ["one", "two"].map(|name| file([App::http().named(name)]));
    let rouse = Launch::of(&one).up(&programs()).await;
    // Same size, modification time and path: only a reload on request can detect the change.
    let path = rouse.dir().join("rouse.yaml");
    let written = path.metadata().unwrap().modified().unwrap();
    std::fs::write(&path, &two).unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
    assert_eq!(ask(&rouse, "two", "/").await.status, 404);
    rouse.signal(Signal::HUP);
    printed(&rouse, "reloaded rouse.yaml", 1).await;
    assert_eq!(ask(&rouse, "two", "/").await.status, 200);
    assert_eq!(ask(&rouse, "one", "/").await.status, 404);
    rouse.stop().await;
}
