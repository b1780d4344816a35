//! The binary with `rouse gateway --check-config`.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

struct Answer {
    code: i32,
    out: String,
    err: String,
}

fn rouse(arguments: &[&str], variables: &[(&str, &str)]) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rouse"));
    command.arg("gateway").args(arguments).env_clear().envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Answer { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

/// A configuration file in a folder of its own, and its path.
fn configuration(text: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gateway.yaml");
    fs::write(&file, text).unwrap();
    (folder, file.to_str().unwrap().to_owned())
}

#[test]
fn good_settings_are_shown_with_their_origin_and_warnings_on_stderr() {
    let (_folder, file) = configuration("# ours\nmax-hold: 2m\n");
    let variables = [("ROUSE_WORKERS", "3"), ("KEDA_CONDITION_WAIT_TIMEOUT", "7s")];
    let arguments = ["--check-config", "--config", &file, "--max-holds", "5"];
    let answer = rouse(&arguments, &variables);
    assert_eq!(answer.code, 0, "{}", answer.err);
    assert!(
        answer.err.starts_with("warning: KEDA_CONDITION_WAIT_TIMEOUT: this variable is deprecated"),
        "{}",
        answer.err
    );
    let lines: Vec<Vec<&str>> = answer.out.lines().map(|line| line.split_whitespace().collect()).collect();
    for expected in [
        ["max-hold", "2m", &format!("{file}:2:1")],
        ["max-holds", "5", "--max-holds"],
        ["workers", "3", "ROUSE_WORKERS"],
        ["readiness-timeout", "7s", "KEDA_CONDITION_WAIT_TIMEOUT"],
        ["drain-timeout", "30s", "default"],
    ] {
        assert!(lines.iter().any(|line| line[..] == expected[..]), "{expected:?}: {}", answer.out);
    }
    let answer = rouse(&[&arguments[..], &["-o", "json"]].concat(), &variables);
    let all: Value = serde_json::from_str(&answer.out).unwrap();
    let find = |name: &str| all.as_array().unwrap().iter().find(|it| it["name"] == name).unwrap().clone();
    assert_eq!(
        find("workers"),
        serde_json::json!({"name": "workers", "value": 3, "origin": "ROUSE_WORKERS"})
    );
    assert_eq!(find("listen")["value"], serde_json::json!(["0.0.0.0:8080"]));
    assert_eq!((&find("context")["value"], &find("probe")["value"]), (&Value::Null, &Value::Bool(false)));
}

#[test]
fn bad_settings_are_all_told_and_nothing_is_shown() {
    let (_folder, file) = configuration("probe: maybe\n");
    let variables = [("ROUSE_WORKERS", "0"), ("ROUSE_CONFIG", &*file)];
    for arguments in [&["--check-config", "--max-hold", "-1"][..], &["--max-hold", "-1"]] {
        let answer = rouse(arguments, &variables);
        assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{}", answer.err);
        let lines: Vec<&str> = answer.err.lines().collect();
        let [first, flag, variable, of_file, last] = &lines[..] else { panic!("{}", answer.err) };
        assert_eq!((*first, *last), ("error: 3 settings are wrong", "correct them and try again"));
        assert!(flag.starts_with("--max-hold: -1 is not allowed: "), "{flag}");
        assert!(variable.starts_with("ROUSE_WORKERS: 0 is not allowed: "), "{variable}");
        assert!(of_file.starts_with(&format!("{file}:1:8: probe: maybe is not allowed: ")), "{of_file}");
    }
    let answer = rouse(&["--no-such-flag"], &[]);
    assert_eq!(answer.code, 2);
}

#[test]
fn certificates_that_cannot_be_read_are_refused_with_their_setting_also_by_check_config() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("empty.pem"), "").unwrap();
    fs::create_dir(path("folder")).unwrap();
    let (gone, empty, bare) = (path("gone.pem"), path("empty.pem"), path("folder"));
    let door = ["--tls-listen", "127.0.0.1:0"];
    let pair = [&door[..], &["--tls-cert", &gone, "--tls-key", &empty]].concat();
    let roots = ["--keda-compat", "true", "--tls-cert", &gone, "--tls-key", &empty];
    let both = [&door[..], &roots[..]].concat();
    let cases: [(&[&str], &str, &str); 7] = [
        (&roots, "error: --tls-cert: ", "gone.pem: cannot be read: No such file"),
        (&both, "error: --tls-cert: ", "gone.pem: cannot be read: No such file"),
        (&["--upstream-ca", &gone], "error: --upstream-ca: ", "gone.pem: cannot be read: No such file"),
        (&["--upstream-ca", &empty], "error: --upstream-ca: ", "empty.pem: contains no certificate"),
        (&pair, "error: --tls-cert: ", "gone.pem: cannot be read"),
        (
            &["--tls-cert-dir", &bare, door[0], door[1]],
            "error: --tls-cert-dir: ",
            "no pair of certificate and key",
        ),
        (&["--tls-cert-dir", &gone, door[0], door[1]], "error: --tls-cert-dir: ", "No such file"),
    ];
    let elsewhere = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    for (arguments, setting, reason) in cases {
        for check in [&["--check-config"][..], &[]] {
            let answer = rouse(&[check, &elsewhere, arguments].concat(), &[]);
            assert_eq!((answer.code, answer.out.as_str()), (2, ""), "{arguments:?}: {}", answer.err);
            assert!(answer.err.contains(setting) && answer.err.contains(reason), "{}", answer.err);
        }
    }
    let answer = rouse(&["--check-config"], &[("ROUSE_UPSTREAM_CA", &gone)]);
    assert!(answer.err.starts_with("error: ROUSE_UPSTREAM_CA: upstream-ca: "), "{}", answer.err);
    let both = [&pair[..], &["--upstream-ca", &gone, "--check-config"]].concat();
    let answer = rouse(&both, &[]);
    assert!(answer.err.starts_with("error: 2 settings are wrong\n"), "all at once: {}", answer.err);
    // Files without effect are not opened: the gateway starts without them.
    let answer = rouse(&["--check-config", "--tls-cert", &gone, "--tls-key", &gone], &[]);
    assert_eq!(answer.code, 0, "{}", answer.err);
    let answer = rouse(&["--check-config", "--tls-cert-dir", &gone], &[]);
    assert_eq!(answer.code, 0, "{}", answer.err);
}
