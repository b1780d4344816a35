//! The paths of the test app and their responses.

use std::fmt::Display;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rouse_e2e::Error;
use rouse_e2e::body::{self, Body};
use rouse_e2e::pattern::Checker;
use serde_json::{Map, Value, json};

use crate::state::{State, die};
use crate::tls::Seen;
use crate::{grpc, streams, upgrade};

/// A request of this app.
pub(crate) type Asked = Request<Incoming>;
/// An answer of this app. An error cuts the connection or resets the stream.
pub(crate) type Answer = Result<Response<Body>, Error>;

/// The connection that a request came on.
#[derive(Debug)]
pub(crate) struct Wire {
    /// The address of the client.
    pub(crate) peer: SocketAddr,
    /// The local address of the connection.
    pub(crate) local: SocketAddr,
    /// What the handshake showed, if there was one.
    pub(crate) tls: Option<Seen>,
}

pub(crate) async fn answer(state: Arc<State>, request: Asked, wire: Arc<Wire>) -> Answer {
    let head = request.method() == Method::HEAD;
    if state.settings.log_requests && request.uri().path() != "/healthz" {
        println!("{}", seen(&state, &request, &wire));
    }
    let mut response = dispatch(state, request, &wire).await?;
    // On HTTP/2, hyper sends the body of a response to HEAD, and the client treats that as a stream error.
    if head {
        if let Some(len) = response.body().size_hint().exact() {
            response.headers_mut().insert(header::CONTENT_LENGTH, len.into());
        }
        *response.body_mut() = body::empty();
    }
    Ok(response)
}

async fn dispatch(state: Arc<State>, request: Asked, wire: &Wire) -> Answer {
    let in_flight = state.enter();
    if in_flight.over_limit {
        let response = Response::builder().status(500).header("x-over-limit", "1");
        return Ok(response.body(body::full("over the limit\n"))?);
    }
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        [""] => text(format!("{} {}\n", state.settings.uid, std::process::id())),
        ["healthz"] => {
            state.probed();
            if state.ready.load(Ordering::Relaxed) {
                return text("ok\n");
            }
            Ok(Response::builder().status(503).body(body::full("not ready\n"))?)
        }
        ["ready", answer] => {
            state.ready.store(answer == "yes", Ordering::Relaxed);
            text(format!("ready: {answer}\n"))
        }
        ["stats"] => json(&state.stats()),
        ["next"] => {
            state.gate.add_permits(1);
            text("next\n")
        }
        ["order"] => text(format!("{}\n", state.arrival())),
        ["headers"] => headers(&state, &request, wire),
        // A response header that only the gateway may set.
        ["claims"] => Ok(Response::builder().header("x-rouse-cold-start", "true").body(body::empty())?),
        ["status", code] => status(code),
        ["bytes", len] => {
            let counted = Arc::clone(&state);
            Ok(Response::new(body::patterned(parse(len)?, move |sent| counted.sent(sent))))
        }
        ["sink"] | ["expect", "accept"] => sink(&state, request).await,
        // Reads nothing until a request for `/next`.
        ["sink", "next"] => {
            state.next().await;
            sink(&state, request).await
        }
        ["expect", "reject"] => {
            Ok(Response::builder().status(StatusCode::EXPECTATION_FAILED).body(body::full("no\n"))?)
        }
        ["slow", ms] => {
            tokio::time::sleep(Duration::from_millis(parse(ms)?)).await;
            text("slow\n")
        }
        ["wait"] => {
            state.next().await;
            text("waited\n")
        }
        ["hang"] => std::future::pending().await,
        ["die"] => die("it was asked to"),
        ["reset"] => Err("reset".into()),
        ["echo"] => streams::echo(&state, request, in_flight),
        ["chunked", chunks, size] => streams::chunked(&state, in_flight, parse(chunks)?, parse(size)?),
        ["trailers"] => streams::trailers(&state, in_flight),
        ["cut", len] => streams::cut(&state, in_flight, parse(len)?),
        ["sse", events, pace] => streams::events(&state, in_flight, parse(events)?, pace.parse()?),
        ["ws"] => upgrade::websocket(&state, request, in_flight),
        ["upgrade", "rot13"] => upgrade::rot13(&state, request, in_flight),
        ["test.Echo", method] => grpc::echo(&state, request, in_flight, method),
        ["grpc.health.v1.Health", "Check"] => grpc::health(&state, request, in_flight),
        _ => Ok(Response::builder()
            .status(StatusCode::NOT_FOUND)
            .body(body::full("the app has no such path\n"))?),
    }
}

fn text(text: impl Display) -> Answer {
    Ok(Response::builder().header(header::CONTENT_TYPE, "text/plain").body(body::full(text.to_string()))?)
}

fn json(value: &Value) -> Answer {
    Ok(Response::builder()
        .header(header::CONTENT_TYPE, "application/json")
        .body(body::full(value.to_string()))?)
}

fn parse<T: FromStr>(text: &str) -> Result<T, Error>
where
    T::Err: Into<Error>,
{
    text.parse().map_err(Into::into)
}

/// What arrived, on which address and from which client.
fn seen(state: &State, request: &Asked, wire: &Wire) -> Value {
    let mut headers = Map::new();
    for name in request.headers().keys() {
        let values = request.headers().get_all(name).iter();
        let values: Vec<_> = values.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        headers.insert(name.to_string(), json!(values));
    }
    json!({
        "method": request.method().as_str(),
        "uri": request.uri().to_string(),
        "version": format!("{:?}", request.version()),
        "pod": state.settings.pod,
        "peer": wire.peer.to_string(),
        "local": wire.local.to_string(),
        "sni": wire.tls.as_ref().and_then(|tls| tls.sni.as_deref()),
        "client_certificate": wire.tls.as_ref().is_some_and(|tls| tls.certificate),
        "headers": headers,
    })
}

/// What arrived, and some hop-by-hop headers, which a gateway must not forward.
fn headers(state: &State, request: &Asked, wire: &Wire) -> Answer {
    let mut response = json(&seen(state, request, wire))?;
    let out = response.headers_mut();
    out.insert("x-from-app", HeaderValue::from_static("yes"));
    if request.version() <= http::Version::HTTP_11 {
        out.insert(header::CONNECTION, HeaderValue::from_static("x-for-the-neighbour"));
        out.insert("x-for-the-neighbour", HeaderValue::from_static("secret"));
        out.insert("keep-alive", HeaderValue::from_static("timeout=77"));
        out.insert("proxy-authenticate", HeaderValue::from_static("Basic"));
    }
    Ok(response)
}

fn status(code: &str) -> Answer {
    let status: StatusCode = code.parse()?;
    let response = Response::builder().status(status).header("x-from-app", "yes");
    // These statuses must not have a body.
    let bodyless = status.is_informational() || matches!(status.as_u16(), 204 | 304);
    Ok(response.body(if bodyless { body::empty() } else { body::full(format!("{code}\n")) })?)
}

async fn sink(state: &State, request: Asked) -> Answer {
    let mut incoming = request.into_body();
    let mut checker = Checker::default();
    let mut trailers = Map::new();
    while let Some(frame) = incoming.frame().await {
        let frame = frame?;
        if let Some(data) = frame.data_ref() {
            state.received(data.len() as u64);
            checker.take(data);
        }
        for (name, value) in frame.trailers_ref().into_iter().flatten() {
            trailers.insert(name.to_string(), json!(String::from_utf8_lossy(value.as_bytes())));
        }
    }
    json(&json!({"count": checker.count, "intact": checker.intact(), "trailers": trailers}))
}
