//! What settings that are each allowed may still not be together.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::read::Notes;
use super::settings::Settings;
use super::sources::Origin;
use super::value::Value;

/// Tells what does not go together, or does nothing.
pub(super) fn together(settings: &Settings, notes: &mut Notes) {
    doors(settings, notes);
    certificates(settings, notes);
    versions(settings, notes);
    clients(settings, notes);
    heads(settings, notes);
    holds(settings, notes);
    assignments(settings, notes);
    if settings.upstream.skip_verify {
        notes.warn(
            origin(settings, &["upstream-skip-verify"]),
            "the certificates of pods are not verified: anybody in between can read and change all requests",
        );
    }
}

/// The first of `names` that somebody has set: a default is nobody's fault.
fn origin(settings: &Settings, names: &[&str]) -> Origin {
    let set =
        names.iter().filter_map(|name| settings.origin(name)).find(|origin| **origin != Origin::Default);
    set.cloned().unwrap_or(Origin::Default)
}

/// The elements of the list `name`.
fn elements<'s>(settings: &'s Settings, name: &str) -> &'s [Value] {
    match settings.listed().iter().find(|listed| listed.name == name).and_then(|it| it.value.as_ref()) {
        Some(Value::List(values)) => values,
        _ => &[],
    }
}

/// No two listeners at one place.
fn doors(settings: &Settings, notes: &mut Notes) {
    if !notes.sure_of(&["listen", "tls-listen", "admin"]) {
        return;
    }
    let named =
        |name: &'static str, all: &[SocketAddr]| -> Vec<_> { all.iter().map(|it| (name, *it)).collect() };
    let all = [
        named("listen", &settings.listen),
        named("tls-listen", &settings.tls.listen),
        named("admin", &[settings.admin]),
    ]
    .concat();
    for (index, (name, address)) in all.iter().enumerate() {
        if let Some((other, first)) = all.iter().take(index).find(|(_, first)| collide(*first, *address)) {
            let what =
                format!("{name} {address} and {other} {first} are the same place: choose another port");
            notes.tell(origin(settings, &[name, other]), what);
        }
    }
}

fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let everywhere = a.is_ipv4() == b.is_ipv4() && (a.ip().is_unspecified() || b.ip().is_unspecified());
    // Port 0 is another port each time.
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || everywhere)
}

fn certificates(settings: &Settings, notes: &mut Notes) {
    const NAMES: [&str; 4] = ["tls-cert", "tls-key", "tls-cert-dir", "tls-listen"];
    let (certs, keys) = (elements(settings, "tls-cert").len(), elements(settings, "tls-key").len());
    if !notes.sure_of(&NAMES) {
        return;
    }
    let (any, door) = (certs + keys + settings.tls.cert_dirs.len() > 0, !settings.tls.listen.is_empty());
    if certs != keys {
        let what = format!(
            "{certs} of tls-cert and {keys} of tls-key are not pairs: give one key for each certificate"
        );
        notes.tell(origin(settings, &NAMES), what);
    } else if door && !any {
        let what = "TLS needs a certificate: give --tls-cert and --tls-key, or --tls-cert-dir";
        notes.tell(origin(settings, &["tls-listen"]), what);
    } else if any && !door && !(settings.headers.keda_compat && certs > 0) {
        // With keda-compat they are roots of pods' certificates, also without a door.
        notes.warn(origin(settings, &NAMES), "certificates have no effect without --tls-listen");
    }
}

fn versions(settings: &Settings, notes: &mut Notes) {
    const NAMES: [&str; 2] = ["tls-min-version", "tls-max-version"];
    if notes.sure_of(&NAMES) && settings.tls.min_version > settings.tls.max_version {
        let what = "tls-min-version 1.3 is above tls-max-version 1.2: at most the same is allowed";
        notes.tell(origin(settings, &NAMES), what);
    }
}

fn clients(settings: &Settings, notes: &mut Notes) {
    const NAMES: [&str; 2] = ["tls-client-auth", "tls-client-ca"];
    let listed =
        |name| settings.listed().iter().find(|listed| listed.name == name).and_then(|it| it.value.clone());
    let asked = listed("tls-client-auth") != Some(Value::Word("none"));
    if !notes.sure_of(&NAMES) {
        return;
    }
    match (asked, listed("tls-client-ca").is_some()) {
        (true, false) => notes.tell(
            origin(settings, &NAMES),
            "without roots no client's certificate can be verified: give --tls-client-ca",
        ),
        (false, true) => notes.warn(
            origin(settings, &["tls-client-ca"]),
            "it has no effect without --tls-client-auth optional or required",
        ),
        _ => {}
    }
}

fn heads(settings: &Settings, notes: &mut Notes) {
    const NAMES: [&str; 2] = ["max-request-line", "max-header-size"];
    let limits = &settings.limits;
    if notes.sure_of(&NAMES) && limits.request_line > limits.header_size {
        let what = format!(
            "max-request-line ({} bytes) is above max-header-size ({} bytes), which it is a part of",
            limits.request_line, limits.header_size
        );
        notes.tell(origin(settings, &NAMES), what);
    }
}

fn holds(settings: &Settings, notes: &mut Notes) {
    const NAMES: [&str; 2] = ["max-holds", "max-holds-total"];
    let (one, total) = (settings.holds.per_service, settings.holds.total);
    if notes.sure_of(&NAMES) && one > total / 4 {
        let what = format!(
            "max-holds {one} is above a quarter of max-holds-total {total}, which is all that one service may have: \
             it counts as {}",
            total / 4
        );
        notes.warn(origin(settings, &NAMES), what);
    }
}

/// Each host belongs to one namespace: otherwise whichever is written last would have it, and nobody would be told.
fn assignments(settings: &Settings, notes: &mut Notes) {
    const NAME: &str = "assigned-hosts";
    let mut owners = HashMap::new();
    for value in elements(settings, NAME) {
        let Value::Assignment(host, namespace) = value else { continue };
        let owner = *owners.entry(host).or_insert(namespace);
        if owner != namespace {
            let what =
                format!("{host} is assigned to {owner} and to {namespace}: a host belongs to one namespace");
            notes.tell(origin(settings, &[NAME]), what);
        }
    }
}
