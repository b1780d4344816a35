//! `rouse up` leaves nothing behind: no process (also of other sessions), no zombie, no file.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rouse_e2e::proc::{self, Process};
use rouse_e2e::rouse::{Launch, Rouse};
use rouse_e2e::wait::eventually;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::fixture::{ask, pids, printed, programs, test_app, uid, yaml};

/// In the environment of every process of a family.
const MARK: &str = "ROUSE_TEST_FAMILY";
/// How many processes of a family are called `sleep`.
const SLEEPERS: usize = 4;

/// A server with a family: a child, a grandchild, a child in its own session, an orphan, and one that exits at once. All
/// of them ignore SIGTERM.
const PARENT: &str = "
trap '' TERM
sleep 600 &
sh -c 'sleep 600; :' &
setsid sleep 600 &
(sleep 600 &)
(true &)
exec \"$APP\"
";

/// A `rouse up` whose app has a family. Its working folder and its folder for temporary files are checked for new files.
struct Scene {
    rouse: Rouse,
    mark: String,
    temporary: TempDir,
    before: BTreeSet<String>,
}

impl Scene {
    async fn start() -> Self {
        Self::of("1s").await
    }

    async fn of(grace: &str) -> Self {
        let (app, mark) = (test_app(), fresh());
        let apps = format!(
            "  app: {{command: [sh, parent.sh], env: {{APP: {app}, {MARK}: {mark}}}, scale: {{min: 1}}, \
             stop-grace: {grace}}}\n"
        );
        Self::start_with(&mark, &apps).await
    }

    async fn start_with(mark: &str, apps: &str) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let launch = Launch::of(&yaml(apps))
            .file("parent.sh", PARENT)
            .file("not-executable", "#!/bin/sh\n")
            .file("no-interpreter", "#!/no/such/interpreter\n")
            .env("TMPDIR", temporary.path().display());
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(launch.path("no-interpreter"), mode).unwrap();
        let before = names(&launch.path(""));
        Self { rouse: launch.up(&programs()).await, mark: mark.to_owned(), temporary, before }
    }

    fn family(&self) -> Vec<Process> {
        proc::marked(MARK, &self.mark)
    }

    /// The whole family, once all processes run and the app serves.
    async fn grown(&self) -> Vec<Process> {
        uid(&self.rouse, "app").await;
        let family = eventually("the whole family", async || {
            let family = self.family();
            (sleepers(&family) == SLEEPERS).then_some(family)
        })
        .await;
        self.no_zombies().await;
        family
    }

    async fn no_zombies(&self) {
        eventually("the zombies to be reaped", async || {
            proc::zombies(self.rouse.pid).is_empty().then_some(())
        })
        .await;
    }

    /// Waits until the old family is gone and a new one has replaced it.
    async fn replaced(&self, old: &[Process]) {
        eventually("the old family to be gone", async || {
            old.iter().all(|process| !process.runs()).then_some(())
        })
        .await;
        let new = self.grown().await;
        assert!(new.iter().all(|process| !old.contains(process)), "{new:?}");
        assert_eq!(new.len(), old.len());
    }

    async fn kill_guardian(&self) {
        let pod = Process::of(pids(&self.rouse, "app").await[0]).unwrap();
        let guardian = Process::of(pod.parent().unwrap()).unwrap();
        assert_eq!(guardian.parent(), Some(self.rouse.pid), "a guardian is rouse's own child");
        proc::signal(guardian.pid, Signal::KILL);
        printed(&self.rouse, "was killed together with its guardian process", 1).await;
    }

    /// Asserts that there is no new file.
    fn no_files(&self) {
        assert_eq!(names(self.temporary.path()), BTreeSet::new(), "temporary files");
        assert_eq!(names(self.rouse.dir()), self.before, "files in the working folder");
    }

    /// Sends SIGTERM; nothing is left when the process has ended.
    async fn stop(mut self) {
        self.rouse.signal(Signal::TERM);
        assert_eq!(self.rouse.ended().await, Some(0));
        assert_eq!(self.family(), [], "processes left behind");
        self.no_files();
    }
}

fn fresh() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("family-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn sleepers(family: &[Process]) -> usize {
    family.iter().filter(|process| process.name() == "sleep").count()
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.to_string_lossy().into_owned()).collect()
}

pub(crate) async fn nothing_is_left_after_a_sigkill() {
    let mut scene = Scene::start().await;
    scene.grown().await;
    let children = scene.rouse.children();
    scene.rouse.signal(Signal::KILL);
    assert_eq!(scene.rouse.ended().await, None);
    eventually("the family to be gone", async || scene.family().is_empty().then_some(())).await;
    eventually("all children to be gone", async || children.iter().all(|it| !it.runs()).then_some(())).await;
    scene.no_files();
}

pub(crate) async fn nothing_is_left_after_a_sigkill_in_the_middle_of_leaving() {
    let mut scene = Scene::of("10m").await;
    scene.grown().await;
    scene.rouse.signal(Signal::TERM);
    printed(&scene.rouse, "app-1 is stopping", 1).await;
    scene.rouse.signal(Signal::KILL);
    assert_eq!(scene.rouse.ended().await, None);
    eventually("the family to be gone", async || scene.family().is_empty().then_some(())).await;
    scene.no_files();
}

pub(crate) async fn nothing_is_left_after_a_sigterm() {
    let scene = Scene::start().await;
    scene.grown().await;
    scene.stop().await;
}

pub(crate) async fn nothing_is_left_of_an_app_that_crashed() {
    let scene = Scene::start().await;
    let family = scene.grown().await;
    ask(&scene.rouse, "app", "/die").await;
    scene.replaced(&family).await;
    scene.stop().await;
}

pub(crate) async fn nothing_is_left_of_a_pod_whose_guardian_was_killed() {
    let scene = Scene::start().await;
    let family = scene.grown().await;
    scene.kill_guardian().await;
    scene.replaced(&family).await;
    scene.stop().await;
}

pub(crate) async fn nothing_is_left_of_an_app_that_was_removed_from_the_file() {
    let scene = Scene::start().await;
    scene.grown().await;
    let app = test_app();
    scene.rouse.replace_file(&yaml(&format!("  other: {{command: [{app}]}}\n")));
    eventually("the family to be gone", async || scene.family().is_empty().then_some(())).await;
    scene.no_zombies().await;
    assert_eq!(ask(&scene.rouse, "other", "/").await.status, 200);
    scene.stop().await;
}

pub(crate) async fn nothing_is_left_of_a_start_that_failed() {
    let mark = fresh();
    let app = |name: &str, command: &str| {
        format!(
            "  {name}: {{command: [{command}], env: {{{MARK}: {mark}}}, scale: {{min: 1}}, \
             timeouts: {{readiness: 1s}}}}\n"
        )
    };
    let apps = [
        app("missing", "./no-such-file"),
        app("plain", "./not-executable"),
        app("broken", "./no-interpreter"),
        app("folder", "., x"),
    ];
    let scene = Scene::start_with(&mark, &apps.concat()).await;
    for (name, reason) in [
        ("missing", "command not found: there is no "),
        ("plain", "not-executable is not executable; run chmod +x on it"),
        ("broken", "\"./no-interpreter\" could not be run (a script's #! line may name a program that"),
        ("folder", "cannot start a pod: "),
    ] {
        // More than once: leftovers of one start could affect the next one.
        eventually(&format!("{name} to fail three times"), async || {
            let lines = scene.rouse.output.lines();
            let told =
                lines.iter().filter(|line| line.starts_with(&format!("{name}: ")) && line.contains(reason));
            (told.count() >= 3).then_some(())
        })
        .await;
        let answer = ask(&scene.rouse, name, "/").await;
        assert!(matches!(answer.status.as_u16(), 503 | 504), "{answer:?}");
        assert!(
            answer.text().contains(reason.trim_start_matches("cannot start a pod: ")),
            "{}",
            answer.text()
        );
    }
    scene.no_zombies().await;
    scene.stop().await;
}
