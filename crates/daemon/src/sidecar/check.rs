//! Checks combinations of the sidecar's settings: those that contradict each other, and what push needs.

use rouse_config::settings::{AnySetting, SettingsDiagnostics, Values};

use super::push::target;
use super::settings::{
    ADMIN, APP, DRAIN_SECRET, DRAIN_SECRET_RULE, LISTEN, POD_IPS, POD_NAME, POD_NAMESPACE, POD_UID, PORT,
    PushTarget, REGISTER, REGISTER_CLIENT_CERT, REGISTER_CLIENT_KEY, REGISTER_KEY, REGISTER_NAMESPACE,
    REGISTER_TOKEN, SERVICE,
};

/// Reports settings that contradict each other.
pub(super) fn together(values: &Values, reading: &mut SettingsDiagnostics) {
    addresses(values, reading);
    if values.get(&DRAIN_SECRET).is_some_and(|secret| !secret.is_long_enough()) {
        // Without its value: errors are logged.
        let what = format!("drain-secret must be {DRAIN_SECRET_RULE}");
        reading.problem(values.first_origin(&[&DRAIN_SECRET]), what);
    }
    if reading.is_certain_of(&[&REGISTER, &REGISTER_NAMESPACE]) && target(values) != PushTarget::Off {
        credential(values, reading);
        pod(values, reading);
    }
}

/// Rejects an app at an address of the sidecar itself: requests would go in circles.
fn addresses(values: &Values, reading: &mut SettingsDiagnostics) {
    if !reading.is_certain_of(&[&LISTEN, &ADMIN, &APP]) {
        return;
    }
    let app = values.get(&APP);
    for (setting, address) in values
        .get(&LISTEN)
        .into_iter()
        .map(|address| (&LISTEN as &'static dyn AnySetting, address))
        .chain([(&ADMIN as _, values.get(&ADMIN))])
    {
        let same_ip = address.ip() == app.ip() || (address.ip().is_unspecified() && app.ip().is_loopback());
        if address.port() == app.port() && same_ip {
            let what = format!(
                "{} {address} and app {app} are the same address: choose another port",
                setting.name()
            );
            reading.problem(values.first_origin(&[setting, &APP]), what);
        }
    }
}

/// Rejects push without exactly one way to prove who the pod is.
fn credential(values: &Values, reading: &mut SettingsDiagnostics) {
    const SETTINGS: [&dyn AnySetting; 4] =
        [&REGISTER_TOKEN, &REGISTER_KEY, &REGISTER_CLIENT_CERT, &REGISTER_CLIENT_KEY];
    if !reading.is_certain_of(&SETTINGS) {
        return;
    }
    let (cert, key) =
        (values.get(&REGISTER_CLIENT_CERT).is_some(), values.get(&REGISTER_CLIENT_KEY).is_some());
    let given = [values.get(&REGISTER_TOKEN).is_some(), values.get(&REGISTER_KEY).is_some(), cert];
    if cert != key {
        let what = "give both --register-client-cert and --register-client-key";
        reading.problem(values.first_origin(&SETTINGS), what);
    } else if given.iter().filter(|given| **given).count() != 1 {
        let what = "push needs one proof of who the pod is: give --register-token, --register-key or --register-client-cert; \
                    or turn push off with --register none";
        reading.problem(values.first_origin(&SETTINGS), what);
    }
}

/// Rejects push without what is said about the pod.
fn pod(values: &Values, reading: &mut SettingsDiagnostics) {
    const SETTINGS: [&dyn AnySetting; 6] = [&POD_NAME, &POD_NAMESPACE, &POD_UID, &POD_IPS, &SERVICE, &PORT];
    if !reading.is_certain_of(&SETTINGS) {
        return;
    }
    let given = [
        values.get(&POD_NAME).is_some(),
        values.get(&POD_NAMESPACE).is_some(),
        values.get(&POD_UID).is_some(),
        !values.get(&POD_IPS).is_empty(),
        values.get(&SERVICE).is_some(),
        !values.get(&PORT).is_empty(),
    ];
    let missing: Vec<String> = SETTINGS
        .iter()
        .zip(given)
        .filter(|(_, given)| !given)
        .map(|(setting, _)| format!("--{}", setting.name()))
        .collect();
    if !missing.is_empty() {
        let what = format!("push needs {}; or turn it off with --register none", missing.join(", "));
        reading.problem(values.first_origin(&SETTINGS), what);
    }
}
