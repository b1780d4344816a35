//! `rouse sidecar`: its settings, its help and its documentation. `ROUSE_WRITE_DOCS=1` writes the table of settings again.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a panic is how a test fails")]

use std::fmt::Write as _;
use std::fs;

use clap::{Args as _, Command, CommandFactory as _, FromArgMatches as _};
use rouse_cli::args::Rouse;
use rouse_config::settings::{Environment, Group, Values};
use rouse_daemon::sidecar::settings::{self as set, AppCheck, PushTarget, TABLE};
use rouse_daemon::sidecar::{SidecarArgs, read_settings};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sidecar.md");
const BEGIN: &str = "<!-- settings: begin -->\n";
const END: &str = "<!-- settings: end -->\n";

fn read(flags: &[&str]) -> Result<Values, String> {
    let words = ["sidecar"].iter().chain(flags);
    let matches = SidecarArgs::augment_args(Command::new("sidecar")).try_get_matches_from(words).unwrap();
    let args = SidecarArgs::from_arg_matches(&matches).unwrap();
    read_settings(&args, &Environment::default()).map(|(values, _)| values).map_err(|error| error.to_string())
}

#[test]
fn help_says_every_flag() {
    let help = Rouse::command().find_subcommand_mut("sidecar").unwrap().render_long_help().to_string();
    for setting in TABLE.settings() {
        let flag = setting.flag().unwrap();
        assert!(help.contains(&format!("{flag} ")), "{flag}: {help}");
    }
}

#[test]
fn what_push_lacks_is_one_clear_error() {
    let error = read(&[]).unwrap_err();
    for part in ["--register-token", "--pod-name", "--pod-ips", "--service", "--port", "--register none"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(read(&["--register", "none"]).is_ok() && read(&["--register", ""]).is_ok());
    assert!(read(&["--register", "gateway:9443"]).unwrap_err().contains("https://HOST:PORT"));
}

#[test]
fn bad_values_are_refused_and_a_bad_secret_is_not_quoted() {
    for (flags, part) in [
        (["--probe", "http:ready"], "http:PATH"),
        (["--port", "http"], "http=8012"),
        (["--app", "127.0.0.1:8012"], "the same address"),
        (["--concurrency", "-1"], "whole number"),
    ] {
        let error = read(&[&["--register", "none"], &flags[..]].concat()).unwrap_err();
        assert!(error.contains(part), "{flags:?}: {error}");
    }
    let error = read(&["--register", "none", "--drain-secret", "hunter2"]).unwrap_err();
    assert!(error.contains("drain-secret") && !error.contains("hunter2"), "{error}");
}

#[test]
fn values_are_read() {
    let values = read(&["--register", "none", "--probe", "grpc:cart"]).unwrap();
    assert_eq!(values.get(&set::PROBE), AppCheck::Grpc("cart".to_owned()));
    assert_eq!(values.get(&set::REGISTER), Some(PushTarget::Off));
}

#[test]
fn the_documentation_has_the_table_of_settings() {
    let page = fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    let expected = tables();
    if std::env::var_os("ROUSE_WRITE_DOCS").is_some() {
        fs::write(PAGE, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(found, expected, "run this test with ROUSE_WRITE_DOCS=1 and look at what it changed");
}

fn tables() -> String {
    let mut text = String::new();
    for Group { title, settings } in TABLE.groups {
        write!(text, "\n### {title}\n\n| setting | default | allowed | what it does |\n").unwrap();
        text.push_str("| --- | --- | --- | --- |\n");
        for setting in *settings {
            let default = setting.default_text();
            let default = if setting.has_default() { format!("`{default}`") } else { default };
            writeln!(
                text,
                "| `{}` | {default} | {} | {} |",
                setting.name(),
                setting.allowed(),
                setting.help()
            )
            .unwrap();
        }
    }
    text.push('\n');
    text
}
