//! A `rouse.yaml` with mistakes, at the start and after a change.

use rouse_e2e::config::{App, Config};
use rouse_e2e::rouse::Launch;

use crate::fixture::{ask, printed, programs, uid};

/// One mistake of each kind.
const WRONG: &str = "\
listen: 127.0.0.1:0
admin: nowhere
colour: blue
apps:
  one:
    comand: [server]
    scale: {min: 3, max: many}
  two:
    command: [server]
    timeouts: {readiness: soon}
    protocol: carrier-pigeon
    hosts: [shop.localhost]
  three:
    command: [server]
    port: 70000
    hosts: [shop.localhost]
  Four!: {command: [server]}
";

pub(crate) async fn all_mistakes_are_told_at_once_with_line_and_column() {
    let ran = Launch::of(WRONG).refused(&programs()).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    let places = [
        ("2:8", "admin"),
        ("3:1", "colour"),
        ("6:5", "comand"),
        ("7:26", "apps.one.scale.max"),
        ("10:27", "apps.two.timeouts.readiness"),
        ("11:15", "apps.two.protocol"),
        ("15:11", "apps.three.port"),
        ("16:13", "apps.three.hosts"),
        ("17:3", "Four!"),
    ];
    for (place, key) in places {
        let found = ran
            .stderr
            .lines()
            .any(|line| line.contains(&format!("rouse.yaml:{place}: ")) && line.contains(key));
        assert!(found, "nothing about {key} at {place} in\n{}", ran.stderr);
    }
    assert!(ran.stderr.contains("errors in rouse.yaml: correct them and try again"), "{}", ran.stderr);
    assert!(ran.stderr.contains("command"), "what is missing is named: {}", ran.stderr);
    assert!(!ran.stderr.contains('\u{1b}'), "{:?}", ran.stderr);
}

pub(crate) async fn what_is_no_yaml_is_told_with_line_and_column() {
    for (text, line) in
        [("apps:\n  one: [\n", 3), ("apps:\n\tone: {}\n", 2), ("apps: {one: }}\n", 1), ("", 1)]
    {
        let ran = Launch::of(text).refused(&programs()).await;
        assert_eq!(ran.code, Some(2), "{text:?}: {ran:?}");
        let place = ran.stderr.split("rouse.yaml:").nth(1).unwrap_or_default();
        let mut numbers = place.split(':').map(str::parse::<usize>);
        let (Some(Ok(told)), Some(Ok(_column))) = (numbers.next(), numbers.next()) else {
            panic!("no place for {text:?}: {}", ran.stderr);
        };
        assert!(told <= line, "{text:?} is wrong in line {line}: {}", ran.stderr);
    }
}

pub(crate) async fn a_file_that_was_asked_for_and_is_not_there_is_no_demo() {
    let ran = Launch::empty().argument("shop.yaml").refused(&programs()).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    assert!(ran.stderr.contains("cannot read shop.yaml"), "{}", ran.stderr);
}

pub(crate) async fn a_bad_change_is_told_and_the_old_configuration_keeps_serving() {
    let good = Config::of(App::http().warm()).yaml(&programs());
    let rouse = Launch::of(&good).up(&programs()).await;
    rouse.ready("app").await;
    let before = uid(&rouse, "app").await;
    rouse.replace_file(WRONG);
    printed(&rouse, "the old configuration stays in use", 1).await;
    let lines = rouse.output.lines();
    for place in ["rouse.yaml:3:1: ", "rouse.yaml:6:5: ", "rouse.yaml:11:15: "] {
        assert!(lines.iter().any(|line| line.contains(place)), "{place}: {lines:#?}");
    }
    assert_eq!(uid(&rouse, "app").await, before, "the same pod");
    assert_eq!(ask(&rouse, "two", "/").await.header("x-rouse-error"), "no_route");

    rouse.replace_file(&Config::of(App::http().warm()).and(App::http().named("two")).yaml(&programs()));
    printed(&rouse, "reloaded rouse.yaml", 1).await;
    assert_eq!(ask(&rouse, "two", "/").await.status, 200);
    assert_eq!(uid(&rouse, "app").await, before, "nothing has changed for it");
    rouse.stop().await;
}
