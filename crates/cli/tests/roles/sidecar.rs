//! `rouse sidecar`: its settings, its help and its documentation. `ROUSE_WRITE_DOCS=1` writes the table of settings again.

use clap::{Args as _, Command, CommandFactory as _, FromArgMatches as _};
use rouse_cli::args::Rouse;
use rouse_config::settings::{Environment, SettingWarning, Values};
use rouse_daemon::sidecar::settings::{self as set, AppCheck, PushTarget, TABLE};
use rouse_daemon::sidecar::{SidecarArgs, read_settings};
use rouse_daemon::{controller, gateway};
use rouse_testkit::generated_docs;

use crate::tables::tables;

fn read(flags: &[&str]) -> Result<Values, String> {
    read_with(flags, &Environment::default()).map(|(values, _)| values)
}

fn read_with(flags: &[&str], env: &Environment) -> Result<(Values, Vec<SettingWarning>), String> {
    let words = ["sidecar"].iter().chain(flags);
    let matches = SidecarArgs::augment_args(Command::new("sidecar")).try_get_matches_from(words).unwrap();
    let args = SidecarArgs::from_arg_matches(&matches).unwrap();
    read_settings(&args, env).map_err(|error| error.to_string())
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

/// The variables that Kubernetes adds to pods for a Service of their namespace.
fn service_links(service: &str) -> Vec<(String, String)> {
    let prefix = service.replace('-', "_").to_uppercase();
    let ip = "10.96.0.7";
    let mut links = vec![
        ("SERVICE_HOST".to_owned(), ip.to_owned()),
        ("SERVICE_PORT".to_owned(), "9443".to_owned()),
        ("SERVICE_PORT_HTTPS".to_owned(), "9443".to_owned()),
        ("PORT".to_owned(), format!("tcp://{ip}:9443")),
    ];
    for (number, protocol) in [(9443, "tcp"), (53, "udp")] {
        let of_port = format!("PORT_{number}_{}", protocol.to_uppercase());
        links.extend([
            (of_port.clone(), format!("{protocol}://{ip}:{number}")),
            (format!("{of_port}_PROTO"), protocol.to_owned()),
            (format!("{of_port}_PORT"), number.to_string()),
            (format!("{of_port}_ADDR"), ip.to_owned()),
        ]);
    }
    links.into_iter().map(|(name, value)| (format!("{prefix}_{name}"), value)).collect()
}

#[test]
fn variables_that_kubernetes_adds_for_services_are_no_settings_of_the_sidecar() {
    let services =
        ["rouse", "rouse-register", "rouse-register-service", "rouse-service", "rouse-pod", "rouse-admin"];
    let env = Environment::new(services.into_iter().flat_map(service_links));
    let (values, warnings) = read_with(&["--register", "none"], &env).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert!(values.get(&set::PORT).is_empty() && values.get(&set::SERVICE).is_none());
}

#[test]
fn no_setting_has_the_name_of_a_variable_that_kubernetes_adds_whatever_its_value() {
    let others = gateway::settings::TABLE.settings().chain(controller::settings::TABLE.settings());
    for setting in TABLE.settings().chain(others) {
        let Some(name) = setting.variable() else { continue };
        let env = Environment::new([(name.clone(), "x".to_owned())]);
        assert_eq!(env.get(&name), Some("x"), "a Service could be called so that it sets or hides {name}");
    }
}

#[test]
fn values_are_read() {
    let values = read(&["--register", "none", "--probe", "grpc:cart"]).unwrap();
    assert_eq!(values.get(&set::PROBE), AppCheck::Grpc("cart".to_owned()));
    assert_eq!(values.get(&set::REGISTER), Some(PushTarget::Off));
}

#[test]
fn the_documentation_has_the_table_of_settings() {
    generated_docs::check("sidecar.md", &tables(&TABLE));
}
