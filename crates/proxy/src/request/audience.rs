//! Who may read the details of a failed start: they name paths and quote the app, so only developers at this machine.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{FORWARDED, HOST};
use rouse_core::endpoint::ServiceId;
use rouse_core::host::Host;
use rouse_core::start::StartFailure;

/// What a client is told of `failure`. The details are for developers; other clients learn where to find them.
pub(super) fn told(failure: &StartFailure, service: &ServiceId, developer: bool) -> String {
    let cause = failure.cause;
    if developer && cause.is_local() {
        return failure.detail().to_owned();
    }
    let more = if cause.is_local() {
        format!("`rouse logs {}` says more", service.name())
    } else {
        "the conditions of its route and the gateway's log say more".to_owned()
    };
    format!("{} ({}); {more}", cause.sentence(), cause.code())
}

/// Whether a request comes from a developer at this machine: from a loopback address, for a loopback name, and not by way
/// of another proxy. `headers` are those for the pod, so our own entry in `X-Forwarded-For` is the last.
pub(super) fn is_developer(peer: IpAddr, headers: &HeaderMap) -> bool {
    let mut forwarded = headers.get_all("x-forwarded-for").iter();
    let direct = !headers.contains_key(FORWARDED)
        && forwarded.next().is_none_or(|only| !only.as_bytes().contains(&b','))
        && forwarded.next().is_none();
    let host = headers.get(HOST).and_then(|host| Host::parse(host.as_bytes()).ok());
    peer.to_canonical().is_loopback() && direct && host.is_some_and(|host| is_loopback(&host))
}

/// Whether `host` can only mean this machine.
fn is_loopback(host: &Host<'_>) -> bool {
    let name = host.name();
    match name.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => name == "localhost" || name.ends_with(".localhost"),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rouse_core::start::Cause;

    use super::*;

    #[test]
    fn only_loopback_names_mean_this_machine() {
        let own = [
            "localhost",
            "LOCALHOST:80",
            "hello.localhost",
            "a.b.localhost.:8080",
            "127.0.0.1",
            "127.8.8.8:80",
            "[::1]:80",
        ];
        let others = [
            "",
            "localhost.example.com",
            "notlocalhost",
            "hello.test",
            "10.0.0.1:80",
            "[::2]",
            "[::1",
            "::1:80",
        ];
        for (names, expected) in [(&own[..], true), (&others[..], false)] {
            for name in names {
                let loopback = Host::parse(name.as_bytes()).is_ok_and(|host| is_loopback(&host));
                assert_eq!(loopback, expected, "{name:?}");
            }
        }
    }

    #[test]
    fn a_developer_asks_from_this_machine_for_this_machine_and_without_a_proxy() {
        let asks = |peer: &str, pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            is_developer(peer.parse().unwrap(), &headers)
        };
        let host = ("host", "hello.localhost");
        assert!(asks("127.0.0.1", &[host, ("x-forwarded-for", "127.0.0.1")]));
        assert!(asks("::ffff:127.0.0.1", &[host]) && asks("::1", &[host]));
        assert!(!asks("192.168.1.5", &[host]));
        assert!(!asks("127.0.0.1", &[("host", "hello.test")]) && !asks("127.0.0.1", &[]));
        assert!(!asks("127.0.0.1", &[host, ("x-forwarded-for", "203.0.113.9, 127.0.0.1")]));
        assert!(!asks("127.0.0.1", &[host, ("forwarded", "for=203.0.113.9")]));
    }

    #[test]
    fn strangers_hear_the_cause_and_where_to_look_and_nobody_hears_the_api_server() {
        let service = "local/hello".parse().unwrap();
        let crashed = StartFailure::new(Cause::CrashLooping, "hello-1 exited: \"password is hunter2\"");
        assert!(told(&crashed, &service, true).contains("hunter2"));
        assert_eq!(
            told(&crashed, &service, false),
            "its process ended before it was ready, several times in a row (crash_looping); `rouse logs hello` says more"
        );
        let refused =
            StartFailure::new(Cause::ScaleRefused, "user system:serviceaccount:infra:gateway cannot patch");
        assert_eq!(told(&refused, &service, true), told(&refused, &service, false));
        assert!(!told(&refused, &service, true).contains("serviceaccount"));
    }
}
