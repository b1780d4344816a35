//! Decides which clients get the details of a failed start: only developers at this machine, since they name paths and quote
//! the output of the app.

use std::net::IpAddr;

use http::header::{FORWARDED, HOST, HeaderName};
use rouse_core::endpoint::ServiceId;
use rouse_core::host::Host;
use rouse_core::start_failure::StartFailure;

use crate::message::RequestHead;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The text for a client. Developers get the details of `failure`; other clients learn where to find them.
pub(super) fn describe(failure: &StartFailure, service: &ServiceId, developer: bool) -> String {
    let cause = failure.cause;
    if developer && cause.is_local() {
        return failure.detail().to_owned();
    }
    let more = if cause.is_local() {
        format!("see `rouse logs {}`", service.name())
    } else {
        "see the conditions of its route and the log of the gateway".to_owned()
    };
    format!("{} ({}); {more}", cause.public_message(), cause.code())
}

/// Whether a request comes from a developer at this machine: from a loopback address, for a loopback name, and not through
/// another proxy. `head` is that for the pod, so the last entry in `X-Forwarded-For` is the gateway's own.
pub(super) fn is_developer(peer: IpAddr, head: &impl RequestHead) -> bool {
    let name = FORWARDED_FOR;
    let mut forwarded = head.header_values(&name);
    let direct = head.header(&FORWARDED).is_none()
        && forwarded.next().is_none_or(|only| !only.contains(&b','))
        && forwarded.next().is_none();
    let host = head.header(&HOST).and_then(|host| Host::parse(host).ok());
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
    use rouse_core::start_failure::StartFailureCause;

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
    fn developers_connect_from_loopback_to_a_loopback_name_without_a_proxy() {
        let asks = |peer: &str, pairs: &[(&'static str, &'static str)]| {
            let request = http::Request::builder();
            let request = pairs.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            is_developer(peer.parse().unwrap(), &request.body(()).unwrap().into_parts().0)
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
    fn other_clients_get_the_cause_and_no_client_gets_texts_of_the_api_server() {
        let service = "local/hello".parse().unwrap();
        let crashed =
            StartFailure::new(StartFailureCause::CrashLooping, "hello-1 exited: \"password is hunter2\"");
        assert!(describe(&crashed, &service, true).contains("hunter2"));
        assert_eq!(
            describe(&crashed, &service, false),
            "its process ended before it was ready, several times in a row (crash_looping); see `rouse logs hello`"
        );
        let refused = StartFailure::new(
            StartFailureCause::ScaleRefused,
            "user system:serviceaccount:infra:gateway cannot patch",
        );
        assert_eq!(describe(&refused, &service, true), describe(&refused, &service, false));
        assert!(!describe(&refused, &service, true).contains("serviceaccount"));
    }
}
