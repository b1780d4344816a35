//! `rouse simulate`: what it reads, what it prints, and what policies cost where that can be counted by hand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

use std::fmt::Write as _;

use anstream::StripStream;
use clap::Parser as _;
use rouse_cli::args::Rouse;
use rouse_cli::{CommandError, Streams};
use rouse_core::random::Random;
use serde_json::Value;

/// Runs `rouse simulate` with these arguments, none of which needs quotes.
fn simulate(arguments: &str, input: &str) -> Result<String, String> {
    let words = ["rouse", "simulate"].into_iter().chain(arguments.split_whitespace());
    let rouse = Rouse::try_parse_from(words).map_err(|error| error.to_string())?;
    let (mut stdin, mut out, mut err) = (input.as_bytes(), StripStream::new(Vec::new()), Vec::new());
    let mut streams = Streams { stdin: &mut stdin, out: &mut out, err: &mut err };
    let result = rouse_cli::run(&rouse, &mut streams);
    match result {
        Ok(()) => Ok(String::from_utf8(out.into_inner()).unwrap()),
        Err(CommandError::Input(what)) => Err(what),
        Err(other) => panic!("{other}"),
    }
}

/// The results of one policy.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Row {
    cold_starts: u64,
    waited_seconds: f64,
    pod_minutes: f64,
    idle_pod_minutes: f64,
}

struct Results(Vec<Value>);

impl Results {
    fn of(arguments: &str, input: &str) -> Self {
        let text = simulate(&format!("{arguments} -o json"), input).unwrap();
        let mut document: Value = serde_json::from_str(&text).unwrap();
        let Value::Array(policies) = document["policies"].take() else { panic!("no policies in {text}") };
        Self(policies)
    }

    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|row| row["policy"].as_str().unwrap()).collect()
    }

    fn row(&self, policy: &str) -> Row {
        let row = self.0.iter().find(|row| row["policy"] == policy).expect(policy);
        assert_eq!(row.as_object().unwrap().len(), 5, "{row}");
        let number = |name: &str| row[name].as_f64().unwrap();
        Row {
            cold_starts: row["cold_starts"].as_u64().unwrap(),
            waited_seconds: number("waited_seconds"),
            pod_minutes: number("pod_minutes"),
            idle_pod_minutes: number("idle_pod_minutes"),
        }
    }
}

#[track_caller]
fn near(number: f64, expected: f64, tolerance: f64) {
    assert!((number - expected).abs() <= tolerance, "{number} is not {expected} ± {tolerance}");
}

/// A trace of functions with these triggers, which are called in these minutes of `minutes`.
fn trace(minutes: u32, functions: &[(&str, &dyn Fn(u32) -> u32)]) -> String {
    let mut text = String::from("HashOwner,HashApp,HashFunction,Trigger");
    (0..minutes).for_each(|minute| write!(text, ",{}", minute + 1).unwrap());
    for (n, (trigger, calls)) in functions.iter().enumerate() {
        write!(text, "\no,a,f{n},{trigger}").unwrap();
        (0..minutes).for_each(|minute| write!(text, ",{}", calls(minute)).unwrap());
    }
    text + "\n"
}

/// A call each ten minutes, for ten hours, that takes a second; a pod takes five to start.
#[test]
fn what_a_timer_costs_can_be_counted_by_hand() {
    let results = Results::of("--shape timers --services 1 --every 10m --jitter 0s --length 10h", "");
    let mut names = [1, 2, 5, 10, 15, 20, 30, 60].map(|minutes| format!("fixed {minutes}m")).to_vec();
    names.extend([1, 2, 5, 10, 20, 40, 80].map(|minutes| format!("learned {minutes}m")));
    names.extend(["keda", "keda-http-add-on", "knative"].map(str::to_owned));
    assert_eq!(results.names(), names);

    let short = results.row("fixed 5m");
    assert_eq!((short.cold_starts, short.waited_seconds), (60, 300.0), "each call waits for five seconds");
    // The last window may end after the simulation. A pod is noticed to be idle up to a second late.
    near(short.idle_pod_minutes, 300.0, 6.0);
    near(short.pod_minutes - short.idle_pod_minutes, 6.0, 0.1);
    let long = results.row("fixed 15m");
    assert_eq!((long.cold_starts, long.waited_seconds), (1, 5.0));
    near(long.pod_minutes, 595.0, 6.0);

    let learned = results.row("learned 10m");
    assert!(learned.cold_starts <= 6, "{learned:?}");
    assert!(learned.idle_pod_minutes < long.idle_pod_minutes / 4.0, "{learned:?}");

    let pushed = results.row("keda-http-add-on");
    assert_eq!((pushed.cold_starts, pushed.waited_seconds), (60, 300.0));
    let polled = results.row("keda");
    assert_eq!(polled.cold_starts, 60);
    let wait = polled.waited_seconds / 60.0;
    assert!((5.0..=35.0).contains(&wait), "the poll is up to 30 s late: {wait} s");
    // Both go after a cooldown of five minutes, at the next poll.
    near(pushed.idle_pod_minutes / 60.0, 5.25, 0.5);
    let knative = results.row("knative");
    assert_eq!((knative.cold_starts, knative.waited_seconds), (60, 300.0));
    near(knative.idle_pod_minutes / 60.0, 1.0, 0.2);
}

#[test]
fn a_start_for_which_no_request_comes_is_charged() {
    // Ten calls at equal distances, and then none: the learned policy starts a pod for an eleventh.
    let text = trace(600, &[("timer", &|minute| u32::from(minute % 10 == 0 && minute < 100))]);
    let results = Results::of("--trace - --judge-from 95m", &text);
    let row = results.row("learned 10m");
    assert_eq!((row.cold_starts, row.waited_seconds), (0, 0.0));
    assert!(row.idle_pod_minutes > 0.05 && row.idle_pod_minutes < 10.0, "{row:?}");
    assert!((row.pod_minutes - row.idle_pod_minutes).abs() < f64::EPSILON, "{row:?}");
    assert_eq!(
        results.row("fixed 1m"),
        Row { cold_starts: 0, waited_seconds: 0.0, pod_minutes: 0.0, idle_pod_minutes: 0.0 }
    );
}

#[test]
fn calls_that_wait_for_one_pod_are_one_cold_start_and_their_waits_add_up() {
    let text = trace(10, &[("http", &|minute| if minute == 1 { 600 } else { 0 })]);
    let row = Results::of("--trace - --within-minute even --start-time 10s", &text).row("fixed 2m");
    // Ten calls a second: 100 wait for 10 s down to 0.1 s.
    assert_eq!(row.cold_starts, 1);
    near(row.waited_seconds, 505.0, 0.1);
}

#[test]
fn load_beyond_one_pod_needs_more_pods_with_every_policy() {
    // 200 calls a second of a second each, and a pod should have 10 of them.
    let arguments = "--shape step --services 1 --length 30m --rate 200 --target 10";
    let results = Results::of(arguments, "");
    for policy in ["fixed 1m", "learned 1m", "keda", "keda-http-add-on"] {
        let row = results.row(policy);
        let busy = row.pod_minutes - row.idle_pod_minutes;
        assert!(busy > 150.0, "{policy}: ten minutes of twenty pods, not {busy}");
    }
}

#[test]
fn the_same_seed_gives_the_same_result_and_another_one_does_not() {
    let run = |seed: u32| {
        simulate(&format!("--shape sparse --services 5 --length 6h -o json --seed {seed}"), "").unwrap()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_trace_may_lack_triggers_and_begin_at_any_minute() {
    let text = trace(60, &[("http", &|minute| u32::from(minute % 20 == 5))]);
    let bare = text.replace(",Trigger", "").replace(",http", "");
    let later = {
        let (head, rest) = text.split_once('\n').unwrap();
        let names =
            head.split(',').map(|name| name.parse().map_or(name.to_owned(), |n: u32| (n + 479).to_string()));
        format!("{}\r\n{rest}", names.collect::<Vec<_>>().join(","))
    };
    let expected = Results::of("--trace -", &text).0;
    assert_eq!(expected[0]["cold_starts"], 3);
    assert_eq!(Results::of("--trace -", &bare).0, expected);
    assert_eq!(Results::of("--trace -", &later).0, expected);
}

#[test]
fn triggers_choose_functions() {
    let once = |at: u32| move |minute: u32| u32::from(minute == at);
    let text = trace(60, &[("http", &once(3)), ("timer", &once(4)), ("queue", &once(5)), ("http", &|_| 0)]);
    let count =
        |arguments: &str| Results::of(&format!("--trace - {arguments}"), &text).row("fixed 1m").cold_starts;
    assert_eq!([count(""), count("--trigger http"), count("--trigger timer --trigger queue")], [3, 1, 2]);
    let error = simulate("--trace - --trigger htp", &text).unwrap_err();
    assert_eq!(error, "<stdin>: no function has the trigger htp; there are http, timer, queue");
}

#[test]
fn a_malformed_trace_is_refused_with_line_and_column() {
    let head = "HashOwner,HashApp,HashFunction,Trigger,1,2\n";
    let check = |text: &str, error: &str| {
        assert_eq!(simulate("--trace -", text).unwrap_err(), format!("<stdin>, line {error}"), "{text:?}");
    };
    check("", "1, column 1: the file is empty: expected the names of the columns");
    check("a,b\n", "1, column 1: expected HashOwner, found \"a\"");
    check("HashOwner,HashApp\n", "1, column 3: expected HashFunction, found \"nothing\"");
    check(
        "HashOwner,HashApp,HashFunction\n",
        "1, column 4: expected one column for each minute, 1 to 10080, found 0",
    );
    check(
        "HashOwner,HashApp,HashFunction,trigger,1\n",
        "1, column 4: expected Trigger, or the number of a minute, found \"trigger\"",
    );
    check("HashOwner,HashApp,HashFunction,1,3\n", "1, column 5: expected minute 2, found \"3\"");
    check(&format!("{head}o,a,f,http,1\n"), "2, column 5: expected 6 fields as in line 1, found 5");
    check(&format!("{head}o,a,f,http,0,1,1\n"), "2, column 7: expected 6 fields as in line 1, found 7");
    check(
        &format!("{head}o,a,f,http,0,0\no,a,f,http,0,-1\n"),
        "3, column 6: expected a number of calls, 0 or more, found \"-1\"",
    );
    let bare = "HashOwner,HashApp,HashFunction,1\no,a,f,1\n";
    let error = simulate("--trace - --trigger http", bare).unwrap_err();
    assert_eq!(error, "<stdin>, line 1, column 4: the file has no column Trigger: leave --trigger out");
    let error = simulate("--trace /no/such/trace.csv", "").unwrap_err();
    assert_eq!(error, "/no/such/trace.csv: no such file: check the path");
}

/// Any bytes are read or refused.
#[test]
fn a_trace_of_random_bytes_harms_nothing() {
    let valid = trace(5, &[("http", &|minute| minute), ("timer", &|_| 1)]);
    let mut random = Random::new(1);
    for _ in 0..300 {
        let mut bytes = valid.clone().into_bytes();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            bytes[at] = b",0123456789\n\r-htimer \"\0"[random.below(22)];
        }
        simulate("--trace - -o json", &String::from_utf8(bytes).unwrap()).ok();
    }
}

#[test]
fn bad_arguments_are_refused() {
    for (arguments, part) in [
        ("", "<--trace <FILE>|--shape <SHAPE>>"),
        ("--shape step --trace x", "cannot be used with"),
        ("--shape step --rate 0", "expected a number from 0.001 to 10000"),
        ("--shape step --length 10s", "expected 1m to 168h"),
        ("--shape step --request-time 0s", "expected 1ms to 1h"),
        ("--shape step --compare -o json", "cannot be used with"),
        ("--shape step --trigger http", "cannot be used with"),
        ("--shape step --within-minute even", "cannot be used with"),
        ("--shape step --length 1h --judge-from 1h", "--judge-from 1h leaves nothing: the trace ends at 1h"),
    ] {
        let error = simulate(arguments, "").unwrap_err();
        assert!(error.contains(part), "{arguments}: {error}");
    }
}

#[test]
fn the_table_has_a_line_for_each_policy_and_says_what_was_replayed() {
    let text =
        simulate("--shape timers --services 2 --every 10m --jitter 0s --length 1000m --judge-from 5h", "")
            .unwrap();
    assert!(
        text.starts_with("2 services, shape timers: 2 services with calls, 200 calls in 1000m\n"),
        "{text}"
    );
    assert!(
        text.contains("A pod starts in 5s, a request takes 1s, and a pod should have 100 at a time."),
        "{text}"
    );
    assert!(text.contains("judged from 5h on"), "{text}");
    for policy in Results::of("--shape timers --services 1 --length 1h", "").names() {
        assert_eq!(
            text.lines().filter(|line| line.starts_with(&format!("{policy} "))).count(),
            1,
            "{policy} in {text}"
        );
    }
}

#[test]
fn the_picture_has_a_point_for_each_policy() {
    let text = simulate("--shape timers --services 2 --length 6h -o svg", "").unwrap();
    assert!(text.starts_with("<svg xmlns=") && text.ends_with("</svg>\n"), "{text}");
    for policy in Results::of("--shape timers --services 1 --length 1h", "").names() {
        assert!(text.contains(&format!("<title>{policy}</title>")), "{policy} in {text}");
    }
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    // Without any call, there is nothing to scale the axes by.
    let empty = simulate("--trace - -o svg", &trace(5, &[("a<b", &|_| 0)])).unwrap();
    assert!(!empty.contains("NaN") && !empty.contains("inf"), "{empty}");
}

/// Twenty timers with 40 to 59 minutes between two calls. Their next call is known to some minutes, so a pod that waits for it costs
/// more than one that stays for a minute or two and meets none.
#[test]
fn a_comparison_says_for_each_window_whether_the_learned_policy_is_better() {
    let every = |distance: u32| move |minute: u32| u32::from(minute.is_multiple_of(distance));
    let timers: Vec<_> = (40..60).map(every).collect();
    let functions: Vec<(&str, &dyn Fn(u32) -> u32)> =
        timers.iter().map(|calls| ("timer", calls as _)).collect();
    let text = simulate("--trace - --compare", &trace(1400, &functions)).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let verdict =
        |window: &str| rows.iter().find(|row| row.first() == Some(&window)).unwrap().last().copied();
    for (window, expected) in [("1m", "NO"), ("2m", "NO"), ("5m", "yes"), ("10m", "yes"), ("30m", "yes")] {
        assert_eq!(verdict(window), Some(expected), "{window}: {text}");
    }
    let end = "The learned policy has fewer cold starts and less idle time than 5 of 7 fixed windows.\n";
    assert!(text.ends_with(end), "{text}");
}
