//! `rouse controller`: its settings, its help and its documentation.

use clap::{Args as _, Command, CommandFactory as _, FromArgMatches as _};
use rouse_cli::args::Rouse;
use rouse_config::settings::{Environment, SettingWarning, Values};
use rouse_daemon::controller::settings::{self as set, TABLE};
use rouse_daemon::controller::{ControllerArgs, read_settings};
use rouse_kube::autoscale::AutoscaleDefault;
use rouse_testkit::generated_docs;

use crate::tables::tables;

fn read(flags: &[&str]) -> Result<(Values, Vec<SettingWarning>), String> {
    let words = ["controller"].iter().chain(flags);
    let matches =
        ControllerArgs::augment_args(Command::new("controller")).try_get_matches_from(words).unwrap();
    let args = ControllerArgs::from_arg_matches(&matches).unwrap();
    read_settings(&args, &Environment::default()).map_err(|error| error.to_string())
}

#[test]
fn help_says_every_flag() {
    let help = Rouse::command().find_subcommand_mut("controller").unwrap().render_long_help().to_string();
    for setting in TABLE.settings() {
        let flag = setting.flag().unwrap();
        assert!(help.contains(&format!("{flag} ")), "{flag}: {help}");
    }
}

#[test]
fn without_settings_it_scales_only_what_asks_for_it_and_listens_to_nobody() {
    let (values, warnings) = read(&[]).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    assert_eq!(values.get(&set::AUTOSCALE_DEFAULT), AutoscaleDefault::Off);
    assert!(values.get(&set::AUTOSCALE) && !values.get(&set::ENDPOINT_SLICES));
    assert!(values.get(&set::REPORT_LISTEN).is_none() && values.get(&set::SCALER_LISTEN).is_none());
    assert!(values.get(&set::ADMIN).ip().is_loopback());
}

#[test]
fn reports_need_a_certificate_and_addresses_of_their_own() {
    let cert = ["--report-tls-cert", "tls.crt", "--report-tls-key", "tls.key"];
    let listen = ["--report-listen", "0.0.0.0:9444"];
    assert!(read(&[&listen[..], &cert[..]].concat()).is_ok());
    for flags in [&listen[..], &[&listen[..], &cert[..2]].concat()] {
        let error = read(flags).unwrap_err();
        assert!(error.contains("--report-tls-cert and --report-tls-key"), "{flags:?}: {error}");
    }
    let error = read(&[&listen[..], &cert[..], &["--scaler-listen", "127.0.0.1:9444"]].concat()).unwrap_err();
    assert!(error.contains("overlap: choose another port"), "{error}");
}

#[test]
fn settings_without_effect_are_warned_about() {
    for (flags, other) in [
        (["--report-tls-cert", "tls.crt"], "without --report-listen"),
        (["--max-endpoints-per-slice", "200"], "without --endpointslices"),
        (["--slice-batch-window", "1s"], "without --endpointslices"),
    ] {
        let (_, warnings) = read(&flags).unwrap();
        let [warning] = &warnings[..] else { panic!("{flags:?}: {warnings:?}") };
        assert!(warning.to_string().contains(other), "{flags:?}: {warning}");
    }
}

#[test]
fn bad_values_are_refused() {
    for (flags, part) in [
        (["--autoscale-default", "yes"], "off or on"),
        (["--max-endpoints-per-slice", "1001"], "1000"),
        (["--report-accounts", "rouse-gateway"], "the namespace and the name"),
    ] {
        let error = read(&flags).unwrap_err();
        assert!(error.contains(part), "{flags:?}: {error}");
    }
}

#[test]
fn the_documentation_has_the_table_of_settings() {
    generated_docs::check("controller-configuration.md", &tables(&TABLE));
}
