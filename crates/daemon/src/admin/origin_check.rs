//! Rejects requests to the admin API that a browser sends for a web page of another site.
//!
//! A page of `evil.example` can point its own DNS name at 127.0.0.1 (DNS rebinding), and the browser then connects to us; but
//! the page cannot make the browser send another Host header than that name, nor forge the Origin header.

use std::net::Ipv4Addr;
use std::time::Duration;

use axum::extract::Request;
use axum::http::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rouse_core::host::Host;
use tokio::time::timeout;

use super::error_response::Refusal;

/// The header in which a browser says whose page makes it send a request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The timeout until a response begins. Only the arrival of the request's body takes time.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Passes a request on, or answers 403 with the reason, or 408 if its body is late.
pub(crate) async fn check(request: Request, next: Next) -> Response {
    if let Err(refusal) = admit(request.headers()) {
        return refusal.into_response();
    }
    let late = |_| {
        let seconds = BODY_TIMEOUT.as_secs();
        Refusal::timeout(format!("the body of the request did not arrive within {seconds} seconds"))
            .into_response()
    };
    timeout(BODY_TIMEOUT, next.run(request)).await.unwrap_or_else(late)
}

/// Passes a request of a hook on, or answers 403 with the reason. The response may take as long as it needs.
pub(crate) async fn check_hook(request: Request, next: Next) -> Response {
    match admit(request.headers()).and_then(|()| admit_site(request.headers())) {
        Err(refusal) => refusal.into_response(),
        Ok(()) => next.run(request).await,
    }
}

fn admit(headers: &HeaderMap) -> Result<(), Refusal> {
    let host = single(headers, &HOST)?.ok_or_else(|| Refusal::forbidden("the Host header is missing"))?;
    if !is_own(host) {
        return Err(Refusal::forbidden(format!(
            "the Host {host:?} is not allowed: use an IP address or localhost"
        )));
    }
    let Some(origin) = single(headers, &ORIGIN)? else { return Ok(()) };
    let from = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    if from.is_some_and(|from| from.eq_ignore_ascii_case(host)) {
        return Ok(());
    }
    Err(Refusal::forbidden(format!(
        "the Origin {origin:?} is not allowed: pages of other sites may not use the admin API"
    )))
}

/// Rejects what a browser requests for a page of another site. A hook acts on GET, and for an image or a link of another page
/// a browser sends GET without an Origin. (Everything else that acts is POST, which has one.)
fn admit_site(headers: &HeaderMap) -> Result<(), Refusal> {
    match single(headers, &FETCH_SITE)? {
        None | Some("none" | "same-origin") => Ok(()),
        Some(site) => Err(Refusal::forbidden(format!(
            "{FETCH_SITE} is {site:?}: pages of other sites may not use hooks"
        ))),
    }
}

/// The single value of a header. A repeated header is an error: a proxy in front may have checked the other value.
fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match (value.to_str(), values.next()) {
        (Ok(value), None) => Ok(Some(value)),
        _ => Err(Refusal::forbidden(format!("the header {name} is repeated or not text"))),
    }
}

/// True if a host, with or without a port, is an IP address, `localhost` or a name below it. Another site cannot point such a
/// host at us by DNS.
fn is_own(text: &str) -> bool {
    let Ok(host) = Host::parse(text.as_bytes()) else { return false };
    let name = host.name();
    let is_address = host.is_ipv6() || name.parse::<Ipv4Addr>().is_ok();
    is_address || name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_an_ip_address_or_localhost_is_ourselves() {
        let own =
            ["127.0.0.1", "127.0.0.1:9080", "[::1]:9080", "[::1]", "10.0.0.7:1", "localhost", "LOCALHOST:80"];
        for host in own.into_iter().chain(["rouse.localhost:9080"]) {
            assert!(is_own(host), "{host}");
        }
        let strange =
            ["evil.example", "evil.example:9080", "localhost.evil.example", "notlocalhost", "", ":80"];
        let broken =
            ["[127.0.0.1]", "::1", "127.0.0.1:x", "[::1]x", "127.0.0.1.evil.example", "[localhost]", "1"];
        let no_host = ["127.0.0.1:+80", "localhost:", ".localhost", "a b.localhost", "evil@a.localhost"];
        for host in strange.into_iter().chain(broken).chain(no_host) {
            assert!(!is_own(host), "{host}");
        }
    }

    #[test]
    fn an_origin_must_be_the_host_that_is_asked() {
        let admitted = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            origin.map(|origin| headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap()));
            admit(&headers).is_ok()
        };
        assert!(admitted("127.0.0.1:9080", None));
        assert!(admitted("127.0.0.1:9080", Some("http://127.0.0.1:9080")));
        assert!(admitted("localhost:9080", Some("http://LOCALHOST:9080")));
        for origin in
            ["null", "http://evil.example", "http://127.0.0.1:8080", "http://127.0.0.1", "127.0.0.1:9080"]
        {
            assert!(!admitted("127.0.0.1:9080", Some(origin)), "{origin}");
        }
    }

    #[test]
    fn a_host_that_is_missing_or_said_twice_is_refused() {
        let mut headers = HeaderMap::new();
        assert!(admit(&headers).is_err());
        headers.append(HOST, HeaderValue::from_static("127.0.0.1"));
        assert!(admit(&headers).is_ok());
        headers.append(HOST, HeaderValue::from_static("evil.example"));
        assert!(admit(&headers).is_err());
    }
}
