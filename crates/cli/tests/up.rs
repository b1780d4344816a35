//! The parts of `rouse up` that need no processes: apps and routes from the file, output lines, the console.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is how a test fails")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::cold_start::{ColdStart, ColdStartOutcome};
use rouse_core::endpoint::{PortName, Source};
use rouse_core::host::Host;
use rouse_core::registry::Registry;
use rouse_core::service::ServiceSpec;
use rouse_core::time::Moment;
use rouse_daemon::listeners::ListenAddresses;
use rouse_daemon::process::console::Console;
use rouse_daemon::process::style;
use rouse_daemon::rouse_yaml::{self as config, Config};
use rouse_daemon::up::source::ConfigSource;
use rouse_daemon::up::{messages, plan};
use rouse_local::engine::{AppEvent, AppEventKind, PORT_NAME, PortChoice, Readiness};
use rouse_local::output::{Line, Stream};
use rouse_proxy::routing::Target;
use rouse_proxy::upstream::{Backend, UpstreamProtocol};
use rouse_testkit::fakes::Bench;
use rouse_testkit::halted_writer::HaltedWriter;

fn read(text: &str) -> Config {
    config::read(text, "rouse.yaml").unwrap()
}

fn file() -> ConfigSource {
    ConfigSource::file(Path::new("/srv/shop/rouse.yaml")).unwrap_or_else(|error| panic!("{error}"))
}

const TWO: &str = r#"
apps:
  web:
    command: ["./run", "$PORT"]
    env: {GREETING: hi}
    workdir: ./web
    hosts: [shop.localhost]
    paths: [/, /shop]
    port: 8080
    readiness: {http: /healthz, interval: 2s}
    scale: {target: 2.5, limit: 7}
    timeouts: {readiness: 3s, request: 4s}
    stop-grace: 2s
  api: {command: [api], hosts: [shop.localhost], paths: [/api], protocol: h2c}
"#;

#[test]
fn an_app_of_the_file_is_what_the_engine_is_told() {
    let specs = plan::apps(&read(TWO), &file());
    let [web, api] = &specs[..] else { panic!("{specs:?}") };
    assert_eq!(web.service.to_string(), "local/web");
    assert_eq!(web.command.argv, ["./run", "$PORT"]);
    assert_eq!(web.command.env.get("GREETING").map(String::as_str), Some("hi"));
    assert_eq!(web.command.workdir, Path::new("/srv/shop/web"));
    assert!(matches!(web.port, PortChoice::Fixed(port) if port.get() == 8080));
    assert_eq!(web.readiness, Readiness::Http("/healthz".into()));
    assert_eq!((web.probe_interval, api.probe_interval), (Duration::from_secs(2), Duration::from_secs(10)));
    assert_eq!(web.concurrency.limit.map(std::num::NonZero::get), Some(7));
    assert_eq!(web.stop_grace, Duration::from_secs(2));
    assert!(api.h2c && !web.h2c && api.port == PortChoice::Auto);
    assert_eq!(api.command.workdir, Path::new("/srv/shop"));
}

#[test]
fn the_demos_program_is_this_one() {
    let config = ConfigSource::Demo.read().unwrap();
    for spec in plan::apps(&config, &ConfigSource::Demo) {
        assert_ne!(spec.command.argv[0], "rouse");
    }
    assert_eq!(plan::warnings(&plan::apps(&config, &ConfigSource::Demo)), [""; 0]);
}

#[test]
fn a_program_is_looked_for_under_the_name_that_it_will_have() {
    let text = "apps:\n  a: {command: [/no/such/$NAME], workdir: /}\n  b: {command: [x], workdir: /, env: {PATH: /$NAME}}";
    let warnings = plan::warnings(&plan::apps(&read(text), &file()));
    let [a, b] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(a.contains("there is no /no/such/a-1;"), "{a}");
    assert!(b.contains("no directory of PATH (/b-1)"), "{b}");
}

fn declared(config: &Config) -> Arc<Registry> {
    let registry = Bench::new().registry;
    for app in &config.apps {
        let spec = ServiceSpec { ports: vec![PortName::new(PORT_NAME)], ..ServiceSpec::default() };
        registry.declare(app.name.service(), &spec);
    }
    registry
}

#[test]
fn requests_find_their_app_by_host_and_path() {
    let config = read(TWO);
    let table = plan::routes(&config, &declared(&config));
    for (host, path, app) in [
        ("shop.localhost:8080", "/", Some("web")),
        ("shop.localhost", "/shop/1", Some("web")),
        ("shop.localhost", "/api/1", Some("api")),
        ("web.localhost", "/", None),
    ] {
        let named = Host::parse(host.as_bytes()).unwrap();
        let found = table
            .find(Some(&named), &http::Request::builder().uri(path).body(()).unwrap().into_parts().0)
            .map(|rule| rule.target.name.to_string());
        assert_eq!(found.as_deref(), app, "{host}{path}");
    }
    let protocol = |app: usize| match &table.rules()[app].target.target {
        Target::Backend(Backend { protocol, .. }) => protocol.clone(),
        _ => panic!("it was declared"),
    };
    assert!(matches!([protocol(0), protocol(1)], [UpstreamProtocol::Http1, UpstreamProtocol::H2c]));
    let timeouts = table.rules()[0].target.timeouts;
    assert_eq!(
        (timeouts.readiness, timeouts.request),
        (Some(Duration::from_secs(3)), Some(Duration::from_secs(4)))
    );
}

#[test]
fn the_mistakes_of_a_file_are_named_all_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rouse.yaml");
    std::fs::write(&path, "apps: {a: {comand: [x]}}\nfoo: 1").unwrap();
    let source = ConfigSource::file(&path).unwrap_or_else(|error| panic!("{error}"));
    let error = source.read().unwrap_err().to_string();
    assert!(error.contains("comand") && error.contains("foo") && error.contains("errors in"), "{error}");
    std::fs::remove_file(&path).unwrap();
    assert!(source.read().unwrap_err().to_string().starts_with("cannot read "));
}

#[test]
fn a_file_is_found_by_either_name_and_two_are_an_error_that_names_both() {
    let folder = tempfile::tempdir().unwrap();
    let find = || ConfigSource::find_in(folder.path());
    assert_eq!(find().unwrap(), ConfigSource::Demo);
    for name in ["rouse.yml", "rouse.yaml"] {
        std::fs::write(folder.path().join(name), "apps: {a: {command: [sh]}}").unwrap();
        assert!(find().unwrap().name().ends_with(name));
        assert_eq!(find().unwrap().read().unwrap().apps.len(), 1);
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    for name in ["rouse.yml", "rouse.yaml"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let error = find().unwrap_err().to_string();
    assert!(error.contains("rouse.yaml") && error.contains("rouse.yml"), "{error}");
}

#[test]
fn a_folder_that_is_not_there_is_an_error_with_its_place_and_a_program_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rouse.yaml");
    let source = ConfigSource::file(&path).unwrap_or_else(|error| panic!("{error}"));
    let text = "apps:\n  web:\n    command: no-such-program --fast\n    workdir: web\n  api: {command: sh, workdir: .}\n";
    std::fs::write(&path, text).unwrap();
    let error = source.read().unwrap_err().to_string();
    let missing = folder.path().join("web");
    assert!(
        error.contains("rouse.yaml:4:14: apps.web.workdir: web is not allowed: there is no folder"),
        "{error}"
    );
    assert!(error.contains(&missing.display().to_string()), "{error}");
    std::fs::create_dir(missing).unwrap();
    let warnings = plan::warnings(&plan::apps(&source.read().unwrap(), &source));
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.starts_with("web: command not found: \"no-such-program\""), "{warning}");
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[test]
fn the_greeting_says_where_it_listens_and_how_to_ask() {
    let config = read(TWO);
    let addresses = ListenAddresses {
        plain: vec!["0.0.0.0:8000".parse().unwrap(), "[::1]:8001".parse().unwrap()],
        secure: Vec::new(),
        admin: "127.0.0.1:9080".parse().unwrap(),
        register: None,
        xds: None,
    };
    let lines = messages::greeting(&file(), &config, &addresses);
    let lines: Vec<String> = lines.iter().map(|line| plain(line)).collect();
    assert_eq!(
        lines[..3],
        [
            "listening on http://0.0.0.0:8000",
            "listening on http://[::1]:8001",
            "admin on http://127.0.0.1:9080"
        ]
    );
    let web = "web: curl -H 'Host: shop.localhost' http://127.0.0.1:8000/   or, in a browser, http://shop.localhost:8000/";
    assert_eq!(lines[3], web);
    let demo = messages::greeting(&ConfigSource::Demo, &config, &addresses);
    let hint = demo.iter().find(|line| line.contains("http.server")).unwrap();
    assert!(hint.contains("--bind, $HOST"), "it would serve the folder to the whole network: {hint}");
    assert!(demo[0].contains("demo") && demo.iter().any(|line| line.contains("rouse up --help")), "{demo:?}");
}

#[test]
fn events_are_told_in_plain_words_and_in_colour() {
    let pod: Arc<str> = "hello-1".into();
    let after = Duration::from_micros(231_400);
    let cases = [
        (AppEventKind::Wake, "hello: woken by a request"),
        (AppEventKind::Scaled { from: 0, to: 2, reason: "why".into() }, "hello: scaled from 0 to 2: why"),
        (AppEventKind::Ready { pod: Arc::clone(&pod), after }, "hello: hello-1 ready after 231 ms"),
        (
            AppEventKind::Exited {
                pod: Arc::clone(&pod),
                exit: "exited with code 3".into(),
                expected: false,
            },
            "hello: hello-1 exited with code 3",
        ),
        (AppEventKind::Failed { reason: "no such file".into() }, "hello: cannot start a pod: no such file"),
    ];
    for (what, expected) in cases {
        let event = AppEvent { service: "local/hello".parse().unwrap(), at: Moment::ZERO, what };
        let line = messages::event(&event).unwrap();
        assert_eq!(plain(&line), expected);
        assert!(line.contains("\u{1b}["), "{line:?} has no colour");
    }
}

#[test]
fn a_cold_start_is_told_phase_by_phase() {
    let mut cold = ColdStart::new("local/hello".parse().unwrap(), Moment::ZERO);
    assert_eq!(plain(&style::cold_start(&cold)), "hello: cold start 0 ms");
    let at = |micros: u64| Some(Moment::from_nanos(micros * 1000));
    (cold.wake_sent, cold.pod_seen, cold.pod_ready) = (at(100), at(3100), at(234_100));
    (cold.connected, cold.first_byte) = (at(234_400), at(239_400));
    (cold.ready_by, cold.outcome) = (Some(Source::Probe), ColdStartOutcome::Served);
    let expected = "hello: cold start 239 ms: wake 0.1 · seen 3 · ready 231 · connect 0.3 · first byte 5";
    assert_eq!(plain(&style::cold_start(&cold)), expected);
    (cold.outcome, cold.ended) = (ColdStartOutcome::Abandoned, Some(Moment::from_millis(300)));
    assert!(
        plain(&style::cold_start(&cold))
            .starts_with("hello: cold start abandoned: all clients disconnected after 0.3 s")
    );
    (cold.outcome, cold.ended) = (ColdStartOutcome::Failed, Some(Moment::from_secs(5)));
    assert!(plain(&style::cold_start(&cold)).starts_with("hello: cold start failed after 5 s: wake 0.1"));
}

#[test]
fn what_a_pod_prints_begins_with_its_name_and_leaves_no_colour_behind() {
    let printed = |text: &str| Line { pod: "hello-1".into(), stream: Stream::Stdout, text: text.into() };
    let line = messages::output("hello", &printed("\u{1b}[31mred"));
    assert_eq!(plain(&line), "hello-1 | red");
    assert!(line.ends_with("red\u{1b}[0m"), "{line:?}");
    let color = |app: &str| messages::output(app, &printed("")).split('h').next().unwrap().to_owned();
    assert_ne!(color("hello"), color("slow"), "the demo's apps can be told apart");
}

#[tokio::test]
async fn a_halted_terminal_makes_lines_of_pods_wait_and_holds_up_nothing_else() {
    let (paper, open, text) = HaltedWriter::new();
    let (console, writer) = Console::open(paper).unwrap();
    console.say("listening");
    let (pods, mut passing) = (console.clone(), tokio::task::JoinSet::new());
    passing.spawn(async move {
        for n in 0..10_000 {
            pods.pass_on(format!("pod line {n}")).await;
        }
    });
    for n in 0..100 {
        console.say(format!("important {n}"));
        tokio::task::yield_now().await;
    }
    assert!(passing.try_join_next().is_none(), "it waits for the terminal");
    drop(open);
    passing.join_next().await.unwrap().unwrap();
    writer.finish(Duration::from_secs(20)).await;
    let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().next(), Some("listening"));
    for (what, count) in [("pod line", 10_000), ("important", 100), ("not shown", 0)] {
        assert_eq!(text.lines().filter(|line| line.contains(what)).count(), count, "{what}");
    }
}

#[tokio::test]
async fn the_end_does_not_wait_for_a_terminal_that_is_halted_for_good() {
    let (paper, _open, _text) = HaltedWriter::new();
    let (console, writer) = Console::open(paper).unwrap();
    console.say("one");
    let finish = writer.finish(Duration::from_millis(10));
    tokio::time::timeout(Duration::from_secs(20), finish).await.expect("it must end");
}
