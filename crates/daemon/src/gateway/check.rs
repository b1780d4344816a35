//! Checks combinations of the gateway's settings: those that contradict each other, and those that have no effect.

use std::collections::HashMap;
use std::net::SocketAddr;

use rouse_config::settings::{AnySetting, SettingsDiagnostics, Values};

use crate::listeners::overlap;
use crate::xds_listener;

use super::settings::{
    ADMIN, ASSIGNED_HOSTS, AssignedHost, ClientAuthMode, CredentialKind, KEDA_COMPAT, LISTEN,
    MAX_HEADER_SIZE, MAX_HOLDS, MAX_HOLDS_TOTAL, MAX_REQUEST_LINE, REGISTER_AUTH, REGISTER_CLIENT_CA,
    REGISTER_KEYS, REGISTER_LISTEN, REGISTER_SERVICE, REGISTER_TLS_CERT, REGISTER_TLS_KEY, REPORT_CA,
    REPORT_TO, TLS_CERT, TLS_CERT_DIR, TLS_CLIENT_AUTH, TLS_CLIENT_CA, TLS_KEY, TLS_LISTEN, TLS_MAX_VERSION,
    TLS_MIN_VERSION, UPSTREAM_SKIP_VERIFY, WATCH_NAMESPACE, XDS_LISTEN,
};

/// Reports settings that contradict each other or have no effect.
pub(super) fn together(values: &Values, reading: &mut SettingsDiagnostics) {
    listeners(values, reading);
    certificates(values, reading);
    versions(values, reading);
    client_certificates(values, reading);
    heads(values, reading);
    holds(values, reading);
    assigned_hosts(values, reading);
    registration(values, reading);
    listed_gateways(values, reading);
    reports(values, reading);
    xds_listener::settings::together(values, (&XDS_LISTEN, values.get(&XDS_LISTEN)), reading);
    if values.get(&UPSTREAM_SKIP_VERIFY) {
        reading.warn(
            values.first_origin(&[&UPSTREAM_SKIP_VERIFY]),
            "the certificates of pods are not verified: an attacker in between can read and change all requests",
        );
    }
}

/// Rejects two listeners on one address.
fn listeners(values: &Values, reading: &mut SettingsDiagnostics) {
    if !reading.is_certain_of(&[&LISTEN, &TLS_LISTEN, &ADMIN, &REGISTER_LISTEN, &XDS_LISTEN]) {
        return;
    }
    let named = |setting: &'static dyn AnySetting, all: Vec<SocketAddr>| {
        all.into_iter().map(move |address| (setting, address))
    };
    let all: Vec<_> = named(&LISTEN, values.get(&LISTEN))
        .chain(named(&TLS_LISTEN, values.get(&TLS_LISTEN)))
        .chain(named(&ADMIN, vec![values.get(&ADMIN)]))
        .chain(named(&REGISTER_LISTEN, values.get(&REGISTER_LISTEN).into_iter().collect()))
        .chain(named(&XDS_LISTEN, values.get(&XDS_LISTEN).into_iter().collect()))
        .collect();
    overlap(&all, values, reading);
}

fn certificates(values: &Values, reading: &mut SettingsDiagnostics) {
    const SETTINGS: [&dyn AnySetting; 4] = [&TLS_CERT, &TLS_KEY, &TLS_CERT_DIR, &TLS_LISTEN];
    if !reading.is_certain_of(&SETTINGS) {
        return;
    }
    let (certs, keys) = (values.get(&TLS_CERT).len(), values.get(&TLS_KEY).len());
    let any = certs + keys + values.get(&TLS_CERT_DIR).len() > 0;
    let listens = !values.get(&TLS_LISTEN).is_empty();
    if certs != keys {
        let what =
            format!("tls-cert has {certs} and tls-key has {keys} values: give one key for each certificate");
        reading.problem(values.first_origin(&SETTINGS), what);
    } else if listens && !any {
        let what = "TLS needs a certificate: give --tls-cert and --tls-key, or --tls-cert-dir";
        reading.problem(values.first_origin(&[&TLS_LISTEN]), what);
    } else if any && !listens && !(values.get(&KEDA_COMPAT) && certs > 0) {
        // With keda-compat they are roots of pods' certificates, also without a TLS listener.
        reading.warn(values.first_origin(&SETTINGS), "certificates have no effect without --tls-listen");
    }
}

fn versions(values: &Values, reading: &mut SettingsDiagnostics) {
    const SETTINGS: [&dyn AnySetting; 2] = [&TLS_MIN_VERSION, &TLS_MAX_VERSION];
    if reading.is_certain_of(&SETTINGS) && values.get(&TLS_MIN_VERSION) > values.get(&TLS_MAX_VERSION) {
        let what = "tls-min-version 1.3 is above tls-max-version 1.2: lower the one or raise the other";
        reading.problem(values.first_origin(&SETTINGS), what);
    }
}

fn client_certificates(values: &Values, reading: &mut SettingsDiagnostics) {
    const SETTINGS: [&dyn AnySetting; 2] = [&TLS_CLIENT_AUTH, &TLS_CLIENT_CA];
    if !reading.is_certain_of(&SETTINGS) {
        return;
    }
    let asked = values.get(&TLS_CLIENT_AUTH) != ClientAuthMode::None;
    match (asked, values.get(&TLS_CLIENT_CA).is_some()) {
        (true, false) => reading.problem(
            values.first_origin(&SETTINGS),
            "tls-client-auth needs root certificates to verify clients: give --tls-client-ca",
        ),
        (false, true) => reading.warn(
            values.first_origin(&[&TLS_CLIENT_CA]),
            "it has no effect without --tls-client-auth optional or required",
        ),
        _ => {}
    }
}

fn heads(values: &Values, reading: &mut SettingsDiagnostics) {
    const SETTINGS: [&dyn AnySetting; 2] = [&MAX_REQUEST_LINE, &MAX_HEADER_SIZE];
    let (line, head) = (values.get(&MAX_REQUEST_LINE), values.get(&MAX_HEADER_SIZE));
    if reading.is_certain_of(&SETTINGS) && line > head {
        let what = format!(
            "max-request-line ({line} bytes) is above max-header-size ({head} bytes): the request line is part of the header"
        );
        reading.problem(values.first_origin(&SETTINGS), what);
    }
}

fn holds(values: &Values, reading: &mut SettingsDiagnostics) {
    const SETTINGS: [&dyn AnySetting; 2] = [&MAX_HOLDS, &MAX_HOLDS_TOTAL];
    let (one, total) = (values.get(&MAX_HOLDS), values.get(&MAX_HOLDS_TOTAL));
    if reading.is_certain_of(&SETTINGS) && one > total / 4 {
        let what = format!(
            "max-holds {one} is above a quarter of max-holds-total {total}, the most that one service may have: {} applies",
            total / 4
        );
        reading.warn(values.first_origin(&SETTINGS), what);
    }
}

/// Warns about the CA of controllers to which nothing is reported.
fn reports(values: &Values, reading: &mut SettingsDiagnostics) {
    let certain = reading.is_certain_of(&[&REPORT_TO, &REPORT_CA]);
    if certain && values.get(&REPORT_TO).is_none() && values.get(&REPORT_CA).is_some() {
        reading.warn(values.first_origin(&[&REPORT_CA]), "it has no effect without --report-to");
    }
}

/// Rejects a registration listener that could not authenticate pods.
fn registration(values: &Values, reading: &mut SettingsDiagnostics) {
    const SETTINGS: [&dyn AnySetting; 6] = [
        &REGISTER_LISTEN,
        &REGISTER_AUTH,
        &REGISTER_TLS_CERT,
        &REGISTER_TLS_KEY,
        &REGISTER_KEYS,
        &REGISTER_CLIENT_CA,
    ];
    if !reading.is_certain_of(&SETTINGS) {
        return;
    }
    if values.get(&REGISTER_LISTEN).is_none() {
        let files: [(&dyn AnySetting, bool); 4] = [
            (&REGISTER_TLS_CERT, values.get(&REGISTER_TLS_CERT).is_some()),
            (&REGISTER_TLS_KEY, values.get(&REGISTER_TLS_KEY).is_some()),
            (&REGISTER_KEYS, values.get(&REGISTER_KEYS).is_some()),
            (&REGISTER_CLIENT_CA, values.get(&REGISTER_CLIENT_CA).is_some()),
        ];
        if let Some((setting, _)) = files.into_iter().find(|(_, given)| *given) {
            reading.warn(values.first_origin(&[setting]), "it has no effect without --register-listen");
        }
        return;
    }
    let kinds = values.get(&REGISTER_AUTH);
    let has = |kind| kinds.contains(&kind);
    let (cert, key) = (values.get(&REGISTER_TLS_CERT).is_some(), values.get(&REGISTER_TLS_KEY).is_some());
    if kinds.is_empty() {
        reading.problem(
            values.first_origin(&[&REGISTER_AUTH, &REGISTER_LISTEN]),
            "register-auth is empty: give --register-auth token, hmac or mtls",
        );
    }
    if cert != key {
        reading.problem(
            values.first_origin(&[&REGISTER_TLS_CERT, &REGISTER_TLS_KEY]),
            "give both --register-tls-cert and --register-tls-key",
        );
    } else if !cert && (has(CredentialKind::Token) || has(CredentialKind::Mtls)) {
        reading.problem(
            values.first_origin(&[&REGISTER_AUTH, &REGISTER_LISTEN]),
            "tokens and client certificates need TLS: give --register-tls-cert and --register-tls-key, or use \
             --register-auth hmac alone",
        );
    }
    if has(CredentialKind::Hmac) && values.get(&REGISTER_KEYS).is_none() {
        reading.problem(
            values.first_origin(&[&REGISTER_AUTH]),
            "register-auth hmac needs a folder with keys: give --register-keys",
        );
    }
    if has(CredentialKind::Mtls) && values.get(&REGISTER_CLIENT_CA).is_none() {
        reading.problem(
            values.first_origin(&[&REGISTER_AUTH]),
            "register-auth mtls needs root certificates to verify pods: give --register-client-ca",
        );
    }
}

/// Rejects a host that is assigned to two namespaces: otherwise the last assignment would win silently.
fn assigned_hosts(values: &Values, reading: &mut SettingsDiagnostics) {
    let all = values.get(&ASSIGNED_HOSTS);
    let mut owners = HashMap::new();
    for AssignedHost { host, namespace } in &all {
        let owner = *owners.entry(host).or_insert(namespace);
        if owner != namespace {
            let what =
                format!("{host} is assigned to {owner} and to {namespace}: a host belongs to one namespace");
            reading.problem(values.first_origin(&[&ASSIGNED_HOSTS]), what);
        }
    }
}

/// Warns if answers to pods cannot list the gateways: their Service is in a namespace that is not watched.
fn listed_gateways(values: &Values, reading: &mut SettingsDiagnostics) {
    if !reading.is_certain_of(&[&REGISTER_LISTEN, &REGISTER_SERVICE, &WATCH_NAMESPACE]) {
        return;
    }
    let (listens, service) = (values.get(&REGISTER_LISTEN).is_some(), values.get(&REGISTER_SERVICE));
    if let (true, Some(service), Some(watched)) = (listens, service, values.get(&WATCH_NAMESPACE))
        && service.namespace() != watched
    {
        let what = format!(
            "answers to pods do not list the gateways, because only the namespace {watched} is watched: pods find a new \
             gateway when they look up {service} again, every 15 s"
        );
        reading.warn(values.first_origin(&[&REGISTER_SERVICE]), what);
    }
}
