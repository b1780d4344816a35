//! Checks combinations of the controller's settings.

use rouse_config::settings::{AnySetting, Origin, SettingsDiagnostics, Values};

use super::settings::{
    ADMIN, ENDPOINT_SLICES, MAX_ENDPOINTS_PER_SLICE, POD_NAMESPACE, REPORT_ACCOUNTS, REPORT_LISTEN,
    REPORT_TLS_CERT, REPORT_TLS_KEY, SCALER_LISTEN, SLICE_BATCH_WINDOW, TERMINATING_CONDITIONS,
};
use crate::listeners::overlap;

/// Reports settings that contradict each other or have no effect.
pub(super) fn together(values: &Values, reading: &mut SettingsDiagnostics) {
    listeners(values, reading);
    certificate(values, reading);
    slices(values, reading);
    accounts(values, reading);
}

/// Rejects two listeners on one address.
fn listeners(values: &Values, reading: &mut SettingsDiagnostics) {
    if !reading.is_certain_of(&[&ADMIN, &REPORT_LISTEN, &SCALER_LISTEN]) {
        return;
    }
    let report =
        values.get(&REPORT_LISTEN).map(|address| (&REPORT_LISTEN as &'static dyn AnySetting, address));
    let scaler =
        values.get(&SCALER_LISTEN).map(|address| (&SCALER_LISTEN as &'static dyn AnySetting, address));
    let all = [Some((&ADMIN as _, values.get(&ADMIN))), report, scaler];
    overlap(&all.into_iter().flatten().collect::<Vec<_>>(), values, reading);
}

/// Rejects a report listener without a certificate: gateways send their tokens only over TLS.
fn certificate(values: &Values, reading: &mut SettingsDiagnostics) {
    const SETTINGS: [&dyn AnySetting; 3] = [&REPORT_LISTEN, &REPORT_TLS_CERT, &REPORT_TLS_KEY];
    if !reading.is_certain_of(&SETTINGS) {
        return;
    }
    let (cert, key) = (values.get(&REPORT_TLS_CERT).is_some(), values.get(&REPORT_TLS_KEY).is_some());
    if values.get(&REPORT_LISTEN).is_none() {
        if cert || key {
            let origin = values.first_origin(&[&REPORT_TLS_CERT, &REPORT_TLS_KEY]);
            reading.warn(origin, "it has no effect without --report-listen");
        }
    } else if !(cert && key) {
        let what =
            "gateways send their tokens only over TLS: give both --report-tls-cert and --report-tls-key";
        reading.problem(values.first_origin(&SETTINGS), what);
    }
}

/// Warns about settings of slices that are not written.
fn slices(values: &Values, reading: &mut SettingsDiagnostics) {
    const SETTINGS: [&dyn AnySetting; 3] =
        [&TERMINATING_CONDITIONS, &MAX_ENDPOINTS_PER_SLICE, &SLICE_BATCH_WINDOW];
    if values.get(&ENDPOINT_SLICES) {
        return;
    }
    for setting in SETTINGS.into_iter().filter(|setting| values.origin(*setting) != Origin::Default) {
        reading.warn(values.first_origin(&[setting]), "it has no effect without --endpointslices");
    }
}

/// Warns about gateways whose silence is not noticed: only those of the Service `--gateways` must report.
fn accounts(values: &Values, reading: &mut SettingsDiagnostics) {
    let own = values.get(&POD_NAMESPACE);
    if let Some(other) = values.get(&REPORT_ACCOUNTS).into_iter().find(|account| account.namespace() != own) {
        let what = format!(
            "gateways of {other} may report, but their Service is not in {own}: their load counts, and when they are silent, \
             workloads may be scaled down"
        );
        reading.warn(values.first_origin(&[&REPORT_ACCOUNTS]), what);
    }
}
