//! Parses `rouse.yaml` into a checked configuration, and the errors for invalid files.

#![allow(clippy::panic, clippy::expect_used, reason = "helpers of tests: a panic is how a test fails")]

use std::time::Duration;

use clap::Parser as _;
use proptest::prelude::*;
use rouse_cli::args::Rouse;
use rouse_config::settings::Environment;
use rouse_core::probe::ProbeCheck;
use rouse_core::scale::{IdlePolicy, ScalePolicy, ScaleSettings};
use rouse_daemon::RoleCommand;
use rouse_daemon::rouse_yaml::{
    self, App, AppCommand, AppPort, AppTimeouts, AppTransport, Cert, Config, LogRetention, Readiness, SHOWN,
    Tls,
};

/// The example of the contract, including its comments.
const EXAMPLE: &str = r#"# rouse.yaml — every key but `apps.<name>.command` has a default
listen: 127.0.0.1:8080          # requests come in here; a list is allowed; port 0 = any free port (printed)
admin: 127.0.0.1:9080           # admin API, metrics, dashboard
tls: {listen: 127.0.0.1:8443, certs: [{cert: dev.crt, key: dev.key}]}   # optional
apps:
  hello:                        # the service is local/hello
    command: ["python3", "-m", "http.server", "$PORT", "--bind", "$HOST"]   # $PORT and $HOST are replaced
    env: {GREETING: hi}
    workdir: .                  # relative to the file
    hosts: [hello.localhost]    # default: <name>.localhost
    paths: [/]
    port: auto                  # auto: each pod gets a free PORT on HOST=127.0.0.1
    protocol: http              # http | h2c
    readiness: {http: /healthz} # tcp (default) | http: PATH | grpc: SERVICE
    scale: {min: 0, max: 3, target: 10, limit: 0, idle-after: 60s}   # target: concurrency per pod
    timeouts: {readiness: 30s, request: 0s, response-header: 300s, connect: 500ms}
    stop-grace: 10s
    sidecar: false
"#;

// The texts on what is allowed.
const ADDRESS: &str = r#"an IP address and a port, like 127.0.0.1:8080 or "[::1]:8080""#;
const APPS: &str = r#"an app under its name, like hello: {command: ["python3", "server.py"]}"#;
const SPAN: &str = "a duration from 0s to 720h, like 500ms, 30s, 5m or 1h";
const SOME_SPAN: &str = "a duration from 1ms to 720h, like 500ms, 30s, 5m or 1h";
/// The gateway's text for its own admin address.
const ADMIN: &str = "a loopback address or the pod's own, and a port, like 127.0.0.1:9090: the admin API has no authentication";
const TOP: &str = "an object with listen, admin, tls, logs, apps";

fn read(yaml: &str) -> Config {
    rouse_yaml::read(yaml, "rouse.yaml").unwrap_or_else(|errors| panic!("{yaml}\ngave\n{errors}"))
}

/// Asserts exactly these errors.
#[track_caller]
fn check(yaml: &str, expected: &[&str]) {
    let errors = rouse_yaml::read(yaml, "f").expect_err(yaml);
    let told: Vec<String> = errors
        .problems()
        .iter()
        .map(|problem| {
            let (line, column) = (problem.mark.line, problem.mark.column);
            format!("{line}:{column}: {}: {}", problem.path, problem.what)
        })
        .collect();
    assert_eq!(told, expected, "{yaml}");
}

/// An app with `keys` from line 4 on, indented as they must be.
fn with(keys: &str) -> String {
    format!("apps:\n  a:\n    command: [run]\n    {keys}\n")
}

/// Cases in a file: lines of YAML, which `document` makes a whole file, and after `=> ` the one problem that it has.
#[track_caller]
fn check_cases(cases: &str, document: impl Fn(&str) -> String) {
    let mut yaml: Vec<&str> = Vec::new();
    for line in cases.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("=> ") {
            Some(problem) => check(&document(&std::mem::take(&mut yaml).join("\n")), &[problem]),
            None => yaml.push(line),
        }
    }
    assert!(yaml.is_empty() && !cases.is_empty(), "no expected error for {yaml:?}");
}

fn only_app(keys: &str) -> App {
    let [app] = <[App; 1]>::try_from(read(&with(keys)).apps).expect("one app");
    app
}

fn texts<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn settings() -> ScaleSettings {
    ScaleSettings { max: 3, concurrency: Some(10.0), ..ScaleSettings::default() }
}

#[test]
fn the_example_of_the_contract_means_what_it_says() {
    let Config { listen, admin, tls, logs, apps } = read(EXAMPLE);
    assert_eq!(logs, LogRetention { keep: 4 << 20, folder: None });
    assert_eq!(listen, ["127.0.0.1:8080".parse().unwrap()]);
    assert_eq!(admin, "127.0.0.1:9080".parse().unwrap());
    let certs = vec![Cert { cert: "dev.crt".into(), key: "dev.key".into() }];
    assert_eq!(tls, Some(Tls { listen: "127.0.0.1:8443".parse().unwrap(), certs }));
    let [hello] = &apps[..] else { panic!("{apps:?}") };
    assert_eq!(hello.name.service().to_string(), "local/hello");
    assert_eq!(hello.command.program, "python3");
    assert_eq!(hello.command.arguments, ["-m", "http.server", "$PORT", "--bind", "$HOST"]);
    assert_eq!(hello.env, [("GREETING".to_owned(), "hi".to_owned())].into());
    assert_eq!(hello.readiness, Readiness::Http("/healthz".into()));
    // Everything else has its default value.
    let command = hello.command.clone();
    let (env, readiness) = (hello.env.clone(), hello.readiness.clone());
    let plain = read("apps: {hello: {command: [x]}}").apps.remove(0);
    assert_eq!(hello, &App { command, env, readiness, ..plain });
}

#[test]
fn every_key_but_the_command_has_a_default() {
    let Config { listen, admin, tls, logs, mut apps } = read("apps: {hello: {command: [x]}}");
    assert_eq!(listen, ["127.0.0.1:8080".parse().unwrap()]);
    assert_eq!(admin, "127.0.0.1:9080".parse().unwrap());
    assert_eq!((tls, logs), (None, LogRetention { keep: 4 << 20, folder: None }));
    let hello = apps.remove(0);
    assert_eq!(hello.command, AppCommand { program: "x".into(), arguments: vec![] });
    assert_eq!(hello.env, [].into());
    assert_eq!(hello.workdir.to_str(), Some("."));
    assert_eq!(texts(&hello.hosts), ["hello.localhost"]);
    assert_eq!(texts(&hello.paths), ["/"]);
    assert_eq!(hello.port, AppPort::Auto);
    assert_eq!(hello.protocol, AppTransport::Http);
    assert_eq!((hello.readiness, hello.probe_interval), (Readiness::Tcp, Duration::from_secs(10)));
    assert_eq!(hello.scale.settings(), &settings());
    assert_eq!(hello.scale.policy(), &ScalePolicy::try_from(&settings()).unwrap());
    assert_eq!(hello.scale.limit(), None);
    let timeouts = AppTimeouts {
        readiness: Some(Duration::from_secs(30)),
        request: None,
        response_header: Some(Duration::from_mins(5)),
        connect: Duration::from_millis(500),
    };
    assert_eq!(hello.timeouts, timeouts);
    assert_eq!(hello.stop_grace, Duration::from_secs(10));
    assert!(!hello.sidecar);
    assert_eq!(
        read("tls: {certs: [{cert: c, key: k}]}\napps: {a: {command: [x]}}").tls.unwrap().listen.port(),
        8443
    );
}

#[test]
fn every_key_can_be_set() {
    let config = read(
        "listen: ['[::1]:0', 0.0.0.0:80, '[::1]:0']\nadmin: 127.0.0.1:0\napps: {b: {command: [x]}, a: {command: [x]}}",
    );
    assert_eq!(texts(&config.listen), ["[::1]:0", "0.0.0.0:80", "[::1]:0"]);
    assert_eq!(config.admin.port(), 0);
    assert_eq!(config.apps.iter().map(|app| app.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);

    let logs = |text: &str| read(&format!("logs: {text}\napps: {{a: {{command: [x]}}}}")).logs;
    assert_eq!(logs("out"), LogRetention { keep: 4 << 20, folder: Some("out".into()) });
    assert_eq!(logs("{keep: 1MiB}"), LogRetention { keep: 1 << 20, folder: None });
    assert_eq!(
        logs("{keep: 64KiB, folder: ../out}"),
        LogRetention { keep: 64 << 10, folder: Some("../out".into()) }
    );

    assert_eq!(only_app("workdir: ../x").workdir.to_str(), Some("../x"));
    assert_eq!(
        texts(&only_app("hosts: [A.localhost, '*.a.test', '*']").hosts),
        ["a.localhost", "*.a.test", "*"]
    );
    assert_eq!(texts(&only_app("paths: [/x, /y/]").paths), ["/x", "/y"]);
    assert_eq!(only_app("port: 65535").port, AppPort::Fixed(u16::MAX.try_into().unwrap()));
    assert_eq!(only_app("protocol: h2c").protocol, AppTransport::H2c);
    assert_eq!(only_app("readiness: tcp").readiness.check(80), ProbeCheck::Tcp { port: 80 });
    let http = ProbeCheck::Http { port: 80, path: "/x?y=1".into(), tls: false, headers: vec![] };
    assert_eq!(only_app("readiness: {http: /x?y=1}").readiness.check(80), http);
    let grpc = ProbeCheck::Grpc { port: 80, service: "a.B".into() };
    assert_eq!(only_app("readiness: {grpc: a.B}").readiness.check(80), grpc);
    assert_eq!(only_app("readiness: {grpc: ''}").readiness, Readiness::Grpc(String::new()));
    let app = only_app("readiness: {http: /x, interval: 500ms}");
    assert_eq!(
        (app.readiness, app.probe_interval),
        (Readiness::Http("/x".into()), Duration::from_millis(500))
    );
    let app = only_app("readiness: {interval: 1m}");
    assert_eq!((app.readiness, app.probe_interval), (Readiness::Tcp, Duration::from_mins(1)));
    assert!(only_app("sidecar: true").sidecar);
    assert_eq!(only_app("stop-grace: 0s").stop_grace, Duration::ZERO);

    let app = only_app("scale: {min: 1, max: 1000, target: 0.5, limit: 7, idle-after: 1h}");
    let idle_after = Duration::from_hours(1);
    let expected =
        ScaleSettings { min: 1, max: 1000, concurrency: Some(0.5), limit: 7, idle_after, ..settings() };
    assert_eq!(app.scale.settings(), &expected);
    assert_eq!(app.scale.policy(), &ScalePolicy::try_from(&expected).unwrap());
    assert_eq!(app.scale.limit().unwrap().get(), 7);

    let learned = |scale: &str| only_app(&format!("scale: {{{scale}}}")).scale.settings().clone();
    let policy = |cost| IdlePolicy::Learned { cold_start_cost: cost };
    let (ten, two) = (Duration::from_mins(10), Duration::from_mins(2));
    // Until it has learned, the time for which an idle pod costs as much as a cold start.
    assert_eq!(learned("idle: learned"), ScaleSettings { idle: policy(ten), idle_after: ten, ..settings() });
    let both = learned("idle: learned, cold-start-cost: 2m, idle-after: 20s");
    assert_eq!(both, ScaleSettings { idle: policy(two), idle_after: Duration::from_secs(20), ..settings() });
    assert_eq!(learned("idle: fixed"), settings());
    let schedule = "Mon-Fri 08:00-18:00 Europe/Berlin = 2; Sat 10:00-12:00 UTC = 1";
    let scheduled = learned(&format!("schedule: '{schedule}'"));
    assert_eq!(scheduled, ScaleSettings { schedule: schedule.parse().unwrap(), ..settings() });

    let app = only_app("timeouts: {readiness: 0s, request: 5m, response-header: 0ms, connect: 1ms}");
    let (request, connect) = (Some(Duration::from_mins(5)), Duration::from_millis(1));
    assert_eq!(app.timeouts, AppTimeouts { readiness: None, request, response_header: None, connect });
}

#[test]
fn what_is_written_stays_as_it_is_written() {
    let app = only_app("env: {A: 1.10, B: 007, C: True, D: 'x y', E: '', F: no, G: \"null\"}");
    let values: Vec<&str> = app.env.values().map(String::as_str).collect();
    assert_eq!(values, ["1.10", "007", "True", "x y", "", "no", "null"]);
    let app = &read("apps: {a: {command: [sleep, 0x10, 1e3, yes, 'a b', '']}}").apps[0];
    assert_eq!(app.command.arguments, ["0x10", "1e3", "yes", "a b", ""]);
    let app = &read("apps: {a: {command: python3 -m http.server 'a b' $PORT}}").apps[0];
    assert_eq!(app.command.program, "python3");
    assert_eq!(app.command.arguments, ["-m", "http.server", "a b", "$PORT"]);
    assert_eq!(only_app("port: '80'").port, only_app("port: 80").port);
}

#[test]
fn sections_of_which_nothing_is_left_are_empty() {
    assert_eq!(only_app("env:\n    scale:\n    timeouts: # {connect: 1s}"), only_app(""));
}

#[test]
fn bytes_that_editors_add_do_not_matter() {
    let plain = read(EXAMPLE);
    assert_eq!(read(&format!("\u{feff}{EXAMPLE}")), plain);
    check("\u{feff}apps: []", &[&format!("1:7: apps: a list is not allowed: {APPS}")]);
    assert_eq!(read(&EXAMPLE.replace('\n', "\r\n")), plain);
    assert_eq!(read(&format!("---\n{EXAMPLE}...\n")), plain);
}

#[test]
fn aliases_are_written_out() {
    let config = read("apps:\n  a: &a {command: [x], scale: &s {max: 7}}\n  b: {command: [y], scale: *s}\n");
    assert_eq!(config.apps[0].scale, config.apps[1].scale);
    check(
        "apps:\n  a: {command: [x], scale: &s {max: 0}}\n  b: {command: [y], scale: *s}\n",
        &[
            "2:37: apps.a.scale.max: 0 is not allowed: a whole number from 1 to 1000",
            "2:37: apps.b.scale.max: 0 is not allowed: a whole number from 1 to 1000",
        ],
    );
}

#[test]
fn a_file_that_is_no_configuration_is_one_error() {
    for (yaml, said, allowed) in [
        ("", "1:1: apps: missing", APPS),
        ("# nothing\n", "1:1: apps: missing", APPS),
        ("listen: 127.0.0.1:0\n", "1:1: apps: missing", APPS),
        ("apps:\n", "1:1: apps: missing", APPS),
        ("apps: {}\n", "1:1: apps: missing", APPS),
        ("apps: []\n", "1:7: apps: a list is not allowed", APPS),
        ("hello", "1:1: : hello is not allowed", TOP),
        ("- a\n", "1:1: : a list is not allowed", TOP),
        ("apps: {a: {command: [x]}}\n---\napps: {}\n", "3:1: : a second document (after ---)", "keep one"),
        ("apps:\n  a: [b\n", "3:1: apps.a: not YAML", "while parsing a flow sequence, expected ',' or ']'"),
        ("apps:\n\ta: b\n", "2:2: apps: not YAML", "tabs disallowed within this context (block indentation)"),
        (
            "apps:\n  a:\n    command: [x]\n    hosts: [*.a.test]\n",
            "4:13: apps.a.hosts: not YAML: while parsing node, found unknown anchor",
            r#"put a value that begins with * in quotes, as "*""#,
        ),
        (
            "apps:\n  a:\n    <<: {command: [x]}\n",
            "3:5: apps.a: merge keys (<<) are not supported",
            "write the fields out",
        ),
        (
            "apps:\n  a:\n    stop-grace: !secs 7\n",
            "3:17: apps.a.stop-grace",
            "the tag !secs is not supported",
        ),
    ] {
        check(yaml, &[&format!("{said}: {allowed}")]);
    }
}

#[test]
fn the_admin_api_does_not_listen_on_all_addresses_by_a_flag_either() {
    let read = |address: &str| {
        let rouse = Rouse::try_parse_from(["rouse", "up", "--admin", address]).unwrap();
        let rouse_cli::args::Command::Role(RoleCommand::Up(args)) = rouse.command else {
            unreachable!("it is `up`")
        };
        args.read_settings(&Environment::default())
    };
    for address in ["0.0.0.0:9080", "[::]:9080", "http://0.0.0.0:9080", "[::ffff:0.0.0.0]:9080"] {
        let said = read(address).expect_err(address).to_string();
        assert!(said.contains(ADMIN) && said.starts_with("--admin: "), "{said}");
    }
    for own in ["127.0.0.1:9080", "192.0.2.7:9080", "[::1]:0"] {
        read(own).expect(own);
    }
}

#[test]
fn a_bad_address_says_what_an_address_is() {
    check_cases(include_str!("config/addresses.txt"), |keys| {
        format!("{keys}\napps: {{a: {{command: [x]}}}}\n")
    });
}

#[test]
fn a_bad_name_or_command_says_what_is_allowed() {
    check_cases(include_str!("config/commands.txt"), |app| format!("apps:\n  {app}\n"));
}

#[test]
fn a_bad_value_says_what_is_allowed() {
    check_cases(include_str!("config/values.txt"), with);
    check(&with("protocol: "), &["4:5: apps.a.protocol: missing: http or h2c"]);
}

#[test]
fn a_bad_scale_or_timeout_says_what_is_allowed() {
    check_cases(include_str!("config/scale.txt"), with);
}

#[test]
fn a_near_miss_is_told_what_was_meant() {
    for (yaml, said, allowed, meant) in [
        (
            "listen: 8080\napps: {a: {command: [x]}}",
            "1:9: listen: 8080 is not allowed",
            ADDRESS,
            "127.0.0.1:8080",
        ),
        (
            "listen: :8080\napps: {a: {command: [x]}}",
            "1:9: listen: :8080 is not allowed",
            ADDRESS,
            "127.0.0.1:8080",
        ),
        (
            "listen: localhost:8080\napps: {a: {command: [x]}}",
            "1:9: listen: localhost:8080 is not allowed",
            ADDRESS,
            "127.0.0.1:8080",
        ),
        (
            "tls: {listen: 443, certs: [{cert: c, key: k}]}\napps: {a: {command: [x]}}",
            "1:15: tls.listen: 443 is not allowed",
            ADDRESS,
            "127.0.0.1:443",
        ),
        (&with("stop-grace: 10"), "4:17: apps.a.stop-grace: 10 is not allowed", SPAN, "10s"),
        (
            &with("scale: {idle-after: 60}"),
            "4:25: apps.a.scale.idle-after: 60 is not allowed",
            SOME_SPAN,
            "60s",
        ),
        (
            &with("timeouts: {readiness: 30}"),
            "4:27: apps.a.timeouts.readiness: 30 is not allowed",
            SPAN,
            "30s",
        ),
    ] {
        check(yaml, &[&format!("{said}: {allowed}; did you mean {meant}?")]);
    }
}

#[test]
fn an_unknown_key_is_told_with_the_one_that_was_meant() {
    for (yaml, expected) in [
        ("app: {}\napps: {a: {command: [x]}}", "1:1: app: unknown key: did you mean apps?"),
        (
            "services: {}\napps: {a: {command: [x]}}",
            "1:1: services: unknown key: expected one of listen, admin, tls, logs, apps",
        ),
        (&with("environment: {}"), "4:5: apps.a.environment: unknown key: did you mean env?"),
        (&with("stop_grace: 1s"), "4:5: apps.a.stop_grace: unknown key: did you mean stop-grace?"),
        (&with("Hsots: []"), "4:5: apps.a.Hsots: unknown key: did you mean hosts?"),
        (
            &with("scale: {idleAfter: 5m}"),
            "4:13: apps.a.scale.idleAfter: unknown key: did you mean idle-after?",
        ),
        (
            &with("scale: {replicas: 2}"),
            "4:13: apps.a.scale.replicas: unknown key: expected one of min, max, target, limit, idle-after, idle, cold-start-cost, schedule",
        ),
        (&with("timeouts: {conect: 1s}"), "4:16: apps.a.timeouts.conect: unknown key: did you mean connect?"),
    ] {
        check(yaml, &[expected]);
    }
}

#[test]
fn a_key_that_is_there_twice_is_told_wherever_it_is() {
    check(
        "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\napps:\n  a: {command: [x], port: auto, port: auto}\n  \
         b: {command: [x], env: {A: x, A: y}}\n  a: {}\n",
        &[
            "2:1: listen: this key appears twice, first in line 1: keep one",
            "4:33: apps.a.port: this key appears twice, first in line 4: keep one",
            "5:33: apps.b.env.A: this key appears twice, first in line 5: keep one",
            "6:3: apps.a: this key appears twice, first in line 4: keep one",
        ],
    );
}

#[test]
fn a_host_and_path_lead_to_one_app() {
    read("apps:\n  a: {command: [x], hosts: [h]}\n  b: {command: [x], hosts: [h], paths: [/b]}\n");
    read("apps:\n  a: {command: [x], hosts: ['*.h']}\n  b: {command: [x], hosts: [x.h]}\n");
    check(
        "apps:\n  a: {command: [x], hosts: [h, g], paths: [/x, /y]}\n  \
         b: {command: [x], hosts: [G, c.localhost], paths: [/z, /y/]}\n  c: {command: [x], paths: [/z]}\n",
        &[
            "3:29: apps.b.hosts[0]: g/y leads to two apps: apps.a.hosts[1] in line 2 has it already",
            "4:3: apps.c: c.localhost/z leads to two apps: apps.b.hosts[1] in line 3 has it already",
        ],
    );
}

#[test]
fn lists_have_bounds() {
    let hosts: Vec<String> = (0..51).map(|n| format!("h{n}")).collect();
    read(&with(&format!("hosts: [{}]", hosts[..50].join(","))));
    let expected = "apps.a.hosts[50]: too many entries: at most 50 are allowed";
    check(&with(&format!("hosts: [{}]", hosts.join(","))), &[&format!("4:203: {expected}")]);
}

/// One problem in each line that has an exclamation mark.
const TWENTY: &str = "\
listn: 127.0.0.1:8080   # !
admin: 9080             # !
tls:
  certs:
    - {cert: a.crt}     # !
apps:
  Hello:                # !
    command: run;       # !
  one:                  # !
    workdir: ''         # !
    hosts: [a.test,
      'b c']            # !
    paths: [x]          # !
    env:
      PORT: 1           # !
  two:
    command: [run]
    port: 99999         # !
    protocol: tcp       # !
    readiness: soon     # !
    scale:
      min: 7            # !
      max: 5
      target: 0         # !
      idle-after: 60    # !
    timeouts:
      connect: 0s       # !
    stop-grace: x       # !
    sidecar: maybe      # !
    sidecar: true       # !
";

#[test]
fn twenty_errors_are_told_at_once_and_in_order() {
    let expected: Vec<usize> =
        (1..).zip(TWENTY.lines()).filter(|(_, line)| line.contains('!')).map(|(n, _)| n).collect();
    assert_eq!(expected.len(), 20);
    let errors = rouse_yaml::read(TWENTY, "rouse.yaml").unwrap_err();
    let lines: Vec<usize> = errors.problems().iter().map(|problem| problem.mark.line as usize).collect();
    assert_eq!(lines, expected, "{errors}");
}

#[test]
fn errors_are_printed_a_line_each_and_then_the_next_step() {
    let print = |yaml: &str| rouse_yaml::read(yaml, "dir/rouse.yaml").unwrap_err().to_string();
    assert_eq!(
        print("apps:\n  hello:\n    command: [x]\n    scale:\n      max: 0\n      min: x\n"),
        "dir/rouse.yaml:5:12: apps.hello.scale.max: 0 is not allowed: a whole number from 1 to 1000\n\
         dir/rouse.yaml:6:12: apps.hello.scale.min: x is not allowed: a whole number from 0 to 1000\n\
         2 errors in dir/rouse.yaml: correct them and try again"
    );
    assert_eq!(
        print("- x"),
        "dir/rouse.yaml:1:1: a list is not allowed: an object with listen, admin, tls, logs, apps\n\
         1 error in dir/rouse.yaml: correct it and try again"
    );
}

#[test]
fn no_more_problems_are_printed_than_people_read() {
    let unknown: Vec<String> = (0..1000).map(|n| format!("    x{n}: 1\n")).collect();
    let errors = rouse_yaml::read(&with(&format!("port: 0\n{}", unknown.concat())), "f").unwrap_err();
    assert_eq!((errors.problems().len(), errors.count()), (SHOWN, 1001));
    let print = errors.to_string();
    assert_eq!(print.lines().count(), SHOWN + 2);
    assert!(print.ends_with("\nand 951 more\n1001 errors in f: correct them and try again"), "{print}");
}

#[test]
fn a_long_or_wild_value_is_shown_in_short_and_harmless() {
    let value = format!("\"\\e[31m{}\"", "x".repeat(100));
    let expected =
        format!(r#"4:11: apps.a.port: "\u{{1b}}[31m{}"… is not allowed: auto, or"#, "x".repeat(35));
    check(&with(&format!("port: {value}")), &[&format!("{expected} a number from 1 to 65535")]);
}

/// Invariants for any text.
fn sane(text: &str) {
    match rouse_yaml::read(text, "f") {
        Ok(config) => {
            assert!(!config.apps.is_empty() && !config.listen.is_empty());
            assert!(config.apps.iter().all(|app| !app.hosts.is_empty() && !app.paths.is_empty()));
            assert!(config.apps.iter().all(|app| app.scale.settings().min <= app.scale.settings().max));
        }
        Err(errors) => {
            assert!(!errors.problems().is_empty() && errors.problems().len() <= SHOWN);
            assert!(errors.problems().is_sorted());
            assert!(errors.to_string().lines().count() <= SHOWN + 2, "{errors}");
        }
    }
}

/// Pieces with a meaning in YAML or in `rouse.yaml`.
const PIECES: &[&str] = &[
    "",
    " ",
    "\n",
    "  ",
    "\t",
    ":",
    ": ",
    "- ",
    ",",
    "[",
    "]",
    "{",
    "}",
    "'",
    "\"",
    "\\0",
    "&a ",
    "*a",
    "!!str ",
    "|",
    "#",
    "~",
    "0",
    "-1",
    "99999999999",
    "1e400",
    "ms",
    "\u{feff}",
    "\u{0}",
    "ö",
    "---\n",
    "apps:",
    "<<: ",
    "max: 0\n",
    "sidecar: ",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_change_to_a_good_file_makes_it_panic(
        twenty in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..12, prop::sample::select(PIECES)), 0..6),
    ) {
        let mut text: Vec<char> = if twenty { TWENTY } else { EXAMPLE }.chars().collect();
        for (at, removed, added) in changes {
            let at = at.index(text.len() + 1);
            let end = (at + removed).min(text.len());
            text.splice(at..end, added.chars());
        }
        sane(&text.into_iter().collect::<String>());
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,200}") {
        sane(&text);
    }
}

#[test]
fn the_example_shows_every_default_as_it_is() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/rouse.yaml")).unwrap();
    let mut shown = read(&text);
    let short = "apps: {hello: {command: [python3, -m, http.server, $PORT, --bind, $HOST]}}";
    shown.apps[0].env.clear();
    assert_eq!(shown, read(short));
}
