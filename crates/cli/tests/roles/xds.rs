//! `rouse xds`: its settings, its help and its documentation.

use clap::{Args as _, Command, CommandFactory as _, FromArgMatches as _};
use rouse_cli::args::Rouse;
use rouse_config::settings::{AnySetting, Environment, SettingWarning, Values};
use rouse_daemon::gateway::settings as of_gateway;
use rouse_daemon::xds::settings::{self as set, TABLE};
use rouse_daemon::xds::{XdsArgs, read_settings};
use rouse_testkit::generated_docs;

use crate::tables::tables;

const CERT: [&str; 4] = ["--xds-tls-cert", "tls.crt", "--xds-tls-key", "tls.key"];
const CA: [&str; 2] = ["--xds-client-ca", "ca.crt"];

fn read(flags: &[&str]) -> Result<(Values, Vec<SettingWarning>), String> {
    let words = ["xds"].iter().chain(flags);
    let matches = XdsArgs::augment_args(Command::new("xds")).try_get_matches_from(words).unwrap();
    let args = XdsArgs::from_arg_matches(&matches).unwrap();
    read_settings(&args, &Environment::default()).map_err(|error| error.to_string())
}

#[test]
fn help_says_every_flag() {
    let help = Rouse::command().find_subcommand_mut("xds").unwrap().render_long_help().to_string();
    for setting in TABLE.settings() {
        let flag = setting.flag().unwrap();
        assert!(help.contains(&format!("{flag} ")), "{flag}: {help}");
    }
}

#[test]
fn what_decides_about_routes_and_pods_is_set_by_the_settings_of_the_gateways() {
    let shared = TABLE.groups.iter().find(|group| group.title == set::SHARED).unwrap();
    for setting in shared.settings {
        let mut known = of_gateway::TABLE.settings();
        let is_it = |other: &'static dyn AnySetting| std::ptr::addr_eq(other, *setting);
        assert!(known.any(is_it), "{}", setting.name());
    }
    assert!(shared.settings.len() > 8);
}

#[test]
fn what_shows_the_cluster_needs_client_certificates_unless_it_is_on_loopback_or_the_operator_says_so() {
    let with = |parts: &[&[&'static str]]| parts.concat();
    for good in [
        with(&[&CERT, &CA]),
        with(&[&CERT, &CA, &["--xds-client-san", "envoy.edge.svc"]]),
        with(&[&["--xds-listen", "127.0.0.1:18000"]]),
        with(&[&["--xds-listen", "[::1]:18000"], &CERT]),
        with(&[&["--xds-insecure"]]),
        with(&[&["--xds-insecure"], &CERT]),
    ] {
        let (values, warnings) = read(&good).unwrap_or_else(|error| panic!("{good:?}: {error}"));
        assert!(warnings.is_empty(), "{good:?}: {warnings:?}");
        assert_eq!(values.get(&set::XDS_LISTEN).port(), set::DEFAULT_XDS_PORT);
    }
    for (bad, part) in [
        (with(&[]), "0.0.0.0:18000 is not on loopback"),
        (with(&[&["--xds-listen", "10.0.0.7:18000"]]), "10.0.0.7:18000 is not on loopback"),
        (with(&[&CERT]), "and report load: give --xds-client-ca, or --xds-insecure"),
        (with(&[&CERT[..2], &CA]), "give both --xds-tls-cert and --xds-tls-key"),
        (with(&[&["--xds-insecure"], &CA]), "client certificates need TLS"),
        (with(&[&["--xds-insecure"], &CERT, &["--xds-client-san", "a"]]), "prove nothing without their CA"),
        (with(&[&CERT, &CA, &["--xds-listen", "127.0.0.1:9090"]]), "overlap: choose another port"),
        (with(&[&CERT, &CA, &["--gateways", "a/b"]]), "gateways"),
    ] {
        let error = read(&bad).unwrap_err();
        assert!(error.contains(part), "{bad:?}: {error}");
    }
}

#[test]
fn the_documentation_has_the_table_of_settings() {
    generated_docs::check("xds-configuration.md", &tables(&TABLE));
}
