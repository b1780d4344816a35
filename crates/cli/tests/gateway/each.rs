//! Every setting, by flag, by variable and in the file.

use std::path::Path;

use proptest::{prop_assert, prop_assert_eq, proptest};
use rouse_config::settings::AllowedSources;
use rouse_daemon::gateway::settings::{COLD_START_HEADER, KEDA_COMPAT, PROBE, TABLE};

use super::cases::{CASES, Case};
use super::{FILE, Told, listed, setting, told};

/// Adds the value of a case's setting to what is configured already.
type Way = fn(&Case, &str, Told) -> Told;

/// The ways to configure a setting besides KEDA's variables, in the order of precedence, each with the text that shows its
/// origin.
fn ways(case: &Case) -> [(Way, String); 3] {
    let setting = setting(case.name);
    let flag = |case: &Case, value: &str, told: Told| told.flag(&setting_flag(case), value);
    let variable = |case: &Case, value: &str, told: Told| told.variable(&setting_variable(case), value);
    let file = |case: &Case, value: &str, told: Told| told.file(&line(case, value));
    [(flag, setting.flag().unwrap()), (variable, setting.variable().unwrap()), (file, format!("{FILE}:1:1"))]
}

fn setting_flag(case: &Case) -> String {
    setting(case.name).flag().unwrap()
}

fn setting_variable(case: &Case) -> String {
    setting(case.name).variable().unwrap()
}

/// A file with only this setting.
fn line(case: &Case, value: &str) -> String {
    let value = serde_json::to_string(value).unwrap();
    match setting(case.name).places() {
        AllowedSources::Part { list, part } => {
            let rest = ["cert", "key"].into_iter().find(|key| *key != part).unwrap();
            format!("{list}: [{{{part}: {value}, {rest}: /x}}]\n")
        }
        _ => format!("{}: {value}\n", case.name),
    }
}

/// Whether the value is tried in the file, where certificates are pairs of files.
fn is_tried_in_file(case: &Case, value: &str) -> bool {
    !(matches!(setting(case.name).places(), AllowedSources::Part { .. }) && value.contains(','))
}

fn settable() -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(|case| setting(case.name).places() != AllowedSources::AliasesOnly)
}

#[test]
fn every_setting_has_a_good_and_a_bad_value_here() {
    let tried: Vec<&str> = CASES.iter().map(|case| case.name).collect();
    let known: Vec<&str> = TABLE.settings().map(rouse_config::settings::AnySetting::name).collect();
    assert_eq!(tried, known);
    assert!(CASES.iter().all(|case| !case.bad.is_empty()));
}

#[test]
fn every_good_value_is_taken_from_flag_variable_and_file() {
    for case in settable() {
        let defaults = told().variables(case.with).read();
        assert!(defaults.is_err() || !(case.holds)(&defaults.unwrap().0), "{}: the default", case.name);
        for (way, origin) in ways(case) {
            let settings = way(case, case.good, told().variables(case.with)).settings();
            assert!((case.holds)(&settings), "{} from {origin}: {settings:?}", case.name);
            assert_eq!(listed(&settings, case.name), (case.good.to_owned(), origin));
        }
    }
}

#[test]
fn every_bad_value_is_refused_with_its_source_and_what_is_allowed() {
    for case in settable() {
        for (way, origin) in ways(case) {
            let of_file = origin.starts_with(FILE);
            for bad in case.bad.iter().filter(|bad| !of_file || is_tried_in_file(case, bad)) {
                let problems = way(case, bad, told().variables(case.with)).problems();
                let [problem] = &problems[..] else { panic!("{} {bad:?} {origin}: {problems:?}", case.name) };
                let source = origin.strip_suffix(":1:1").unwrap_or(&origin);
                let repeated = bad
                    .split(',')
                    .any(|part| problem.contains(&format!("{part:?}")) || problem.contains(part));
                assert!(
                    problem.starts_with(source) && problem.contains(case.allowed) && repeated,
                    "{} {bad:?}: {problem}",
                    case.name
                );
                assert!(!of_file || problem.contains(setting(case.name).key().unwrap()), "{problem}");
            }
        }
    }
}

#[test]
fn a_flag_counts_before_a_variable_and_a_variable_before_the_file() {
    for case in settable() {
        let with = || told().variables(case.with);
        let [(flag, by_flag), (variable, by_variable), (file, by_file)] = ways(case);
        let both = |low: Way, high: Way| {
            listed(&high(case, case.good, low(case, case.other, with())).settings(), case.name)
        };
        assert_eq!(both(variable, flag), (case.good.to_owned(), by_flag.clone()));
        assert_eq!(both(file, flag), (case.good.to_owned(), by_flag));
        assert_eq!(both(file, variable), (case.good.to_owned(), by_variable));
        let file = file(case, case.other, with()).settings();
        assert_eq!(listed(&file, case.name), (case.other.to_owned(), by_file));
    }
}

#[test]
fn an_empty_variable_is_not_set() {
    for case in settable() {
        let settings = told().variable(&setting_variable(case), "").settings();
        assert_eq!(listed(&settings, case.name).1, "default", "{}", case.name);
    }
}

#[test]
fn an_empty_flag_or_key_is_refused() {
    for case in settable() {
        let flag = setting_flag(case);
        let problems = told().variables(case.with).flag(&flag, "").problems();
        assert!(
            problems.iter().any(|it| it.starts_with(&format!("{flag}: \"\" is not allowed"))),
            "{problems:?}"
        );
        let problems = told().file(&line(case, "")).problems();
        assert!(problems.iter().any(|it| it.contains("\"\" is not allowed")), "{problems:?}");
        let key = setting(case.name).key().unwrap();
        let problems = told().file(&format!("{key}:\n")).problems();
        assert!(problems.iter().any(|it| it.contains("missing")), "{problems:?}");
    }
}

#[test]
fn a_bad_value_is_told_also_where_another_source_counts() {
    for case in settable() {
        let bad = case.bad.iter().find(|bad| is_tried_in_file(case, bad)).unwrap();
        let all = ways(case);
        let told = all.iter().fold(told().variables(case.with), |told, (way, _)| way(case, bad, told));
        let problems = told.problems();
        assert_eq!(problems.len(), all.len(), "{}: {problems:?}", case.name);
    }
}

#[test]
fn a_flag_that_can_be_there_once_is_refused_twice() {
    for case in settable() {
        let flag = setting_flag(case);
        let twice = told().variables(case.with).flag(&flag, case.good).flag(&flag, case.good);
        if setting(case.name).is_list() {
            continue;
        }
        assert_eq!(twice.problems(), [format!("{flag}: given 2 times: keep one")]);
    }
}

proptest! {
    #[test]
    fn what_is_shown_means_the_same_when_it_is_written(
        index in 0..TABLE.settings().count(),
        text in "[0-9]{1,6}|[0-9]{1,6}(ms|s|m|h|B|KiB|MiB|GiB)|[0-9]{1,3}(\\.[0-9]{1,3}){3}(:[0-9]{1,5}|/[0-9]{1,2})?|[a-z0-9-]{1,20}|\\PC{0,20}",
    ) {
        let setting = TABLE.settings().nth(index).unwrap();
        if let Ok(value) = setting.parse(&text, Path::new("")) {
            let shown = value.text.unwrap();
            prop_assert_eq!(setting.parse(&shown, Path::new("")).map(|value| value.text), Ok(Some(shown)));
        }
    }

    #[test]
    fn any_file_is_taken_or_refused_with_a_line(text in "([a-z-]{1,12}: ?[\\[{]?\\PC{0,12}\n){0,6}") {
        if let Err(problems) = told().file(&text).read() {
            prop_assert!(problems.all().iter().all(|it| it.to_string().starts_with("etc/gateway.yaml:")), "{}", problems);
        }
    }
}

#[test]
fn switches_may_do_without_a_value() {
    let mut bare = told();
    bare.flags = vec!["--probe".into(), "--keda-compat".into(), "--cold-start-header".into(), "false".into()];
    let settings = bare.settings();
    assert!(settings.get(&PROBE) && settings.get(&KEDA_COMPAT) && !settings.get(&COLD_START_HEADER));
}
