//! A hyper client with one persistent connection, HTTP/1.1 or HTTP/2.

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Request, Response, StatusCode, Version, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::body::{self, Body};
use crate::pattern::Checker;
use crate::target::Target;
use crate::wait::within;

/// A transport for a connection.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// A connection.
#[derive(Debug)]
pub struct Http {
    sender: Sender,
    /// Scheme and authority, which precede the path in HTTP/2.
    origin: String,
    host: String,
    // Ends with the client.
    _connection: JoinSet<()>,
}

#[derive(Debug)]
enum Sender {
    One(http1::SendRequest<Body>),
    Two(http2::SendRequest<Body>),
}

/// A response that was read to its end.
#[derive(Debug)]
pub struct FullResponse {
    /// The status.
    pub status: StatusCode,
    /// The protocol.
    pub version: Version,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// The trailers.
    pub trailers: HeaderMap,
}

impl FullResponse {
    /// A header as text, `""` if it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {} {:?}", self.status, self.text()))
    }
}

impl Http {
    /// An HTTP/1.1 connection.
    pub async fn one(target: &Target) -> Self {
        Self::one_over(connect(target).await, &target.host).await
    }

    /// An HTTP/2 connection, with prior knowledge.
    pub async fn two(target: &Target) -> Self {
        Self::two_over(connect(target).await, "http", &target.host).await
    }

    /// HTTP/1.1 with `host` over an existing connection.
    pub async fn one_over(stream: impl Stream, host: &str) -> Self {
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .unwrap_or_else(|error| panic!("no HTTP/1.1 with {host}: {error}"));
        let mut tasks = JoinSet::new();
        // Ignored: the request that waits for a response sees the error.
        tasks.spawn(async move { drop(connection.await) });
        Self { sender: Sender::One(sender), origin: String::new(), host: host.to_owned(), _connection: tasks }
    }

    /// HTTP/2 with `host` over an existing connection.
    pub async fn two_over(stream: impl Stream, scheme: &str, host: &str) -> Self {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap_or_else(|error| panic!("no HTTP/2 with {host}: {error}"));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(connection.await) });
        let origin = format!("{scheme}://{host}");
        Self { sender: Sender::Two(sender), origin, host: host.to_owned(), _connection: tasks }
    }

    /// A request to the target's host, in the form of the protocol.
    pub fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let request = Request::builder().method(method);
        match self.sender {
            Sender::One(_) => request.uri(path).header(header::HOST, &self.host),
            Sender::Two(_) => request.uri(format!("{}{path}", self.origin)),
        }
    }

    /// Sends it; the response's head.
    pub async fn try_send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, hyper::Error> {
        let what = format!("a response to {} {}", request.method(), request.uri());
        match &mut self.sender {
            Sender::One(sender) => {
                within("a free connection", sender.ready()).await?;
                within(&what, sender.send_request(request)).await
            }
            Sender::Two(sender) => {
                within("a free connection", sender.ready()).await?;
                within(&what, sender.send_request(request)).await
            }
        }
    }

    /// Sends it now; the future resolves to the response's head.
    pub async fn start(
        &mut self,
        request: Request<Body>,
    ) -> impl Future<Output = Result<Response<Incoming>, hyper::Error>> + use<> {
        type Sent = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;
        let sent: Sent = match &mut self.sender {
            Sender::One(sender) => {
                within("a free connection", sender.ready()).await.ok();
                Box::pin(sender.send_request(request))
            }
            Sender::Two(sender) => {
                within("a free connection", sender.ready()).await.ok();
                Box::pin(sender.send_request(request))
            }
        };
        sent
    }

    /// Sends it; the response's head.
    pub async fn send(&mut self, request: Request<Body>) -> Response<Incoming> {
        let what = format!("{} {}", request.method(), request.uri());
        self.try_send(request).await.unwrap_or_else(|error| panic!("{what}: {error:?}"))
    }

    /// Sends it; the whole response.
    pub async fn whole(&mut self, request: Request<Body>) -> FullResponse {
        let response = self.send(request).await;
        whole(response).await.unwrap_or_else(|error| panic!("the response was cut: {error:?}"))
    }

    /// GET.
    pub async fn get(&mut self, path: &str) -> FullResponse {
        let request = self.request(Method::GET, path).body(body::empty());
        self.whole(request.unwrap_or_else(|error| panic!("{path}: {error}"))).await
    }

    /// GET of a body that is the [`pattern`](crate::pattern): compared while it arrives, and not kept.
    pub async fn check_pattern(&mut self, path: &str) -> Checker {
        let request = self.request(Method::GET, path).body(body::empty());
        let response = self.send(request.unwrap_or_else(|error| panic!("{path}: {error}"))).await;
        let mut incoming = response.into_body();
        let mut checker = Checker::default();
        while let Some(frame) = within("more of the body", incoming.frame()).await {
            let frame = frame.unwrap_or_else(|error| panic!("the response was cut: {error:?}"));
            if let Ok(data) = frame.into_data() {
                checker.take(&data);
            }
        }
        checker
    }

    /// POST.
    pub async fn post(&mut self, path: &str, body: Body) -> FullResponse {
        let request = self.request(Method::POST, path).body(body);
        self.whole(request.unwrap_or_else(|error| panic!("{path}: {error}"))).await
    }
}

async fn connect(target: &Target) -> TcpStream {
    let stream = within("connect", TcpStream::connect(target.address)).await;
    let stream = stream.unwrap_or_else(|error| panic!("cannot connect to {}: {error}", target.address));
    stream.set_nodelay(true).unwrap_or_else(|error| panic!("{error}"));
    stream
}

/// Reads a response to its end.
pub async fn whole(response: Response<Incoming>) -> Result<FullResponse, hyper::Error> {
    let (head, mut incoming) = response.into_parts();
    let mut body = BytesMut::new();
    let mut trailers = HeaderMap::new();
    while let Some(frame) = within("the response's body", incoming.frame()).await {
        match frame?.into_data() {
            Ok(data) => body.extend_from_slice(&data),
            Err(frame) => trailers.extend(frame.into_trailers().unwrap_or_default()),
        }
    }
    Ok(FullResponse {
        status: head.status,
        version: head.version,
        headers: head.headers,
        body: body.freeze(),
        trailers,
    })
}

/// One GET on a connection of its own.
pub async fn get(target: &Target, path: &str) -> FullResponse {
    Http::one(target).await.get(path).await
}

/// `count` concurrent GETs, each on a connection of its own.
pub fn get_many(target: &Target, path: &'static str, count: usize) -> JoinSet<FullResponse> {
    let one = |_| {
        let target = target.clone();
        async move { get(&target, path).await }
    };
    (0..count).map(one).collect()
}

/// One GET whose connection may be closed before the response.
pub async fn try_get(target: &Target, path: &str) -> Result<FullResponse, hyper::Error> {
    let mut client = Http::one(target).await;
    let request = client.request(Method::GET, path).body(body::empty());
    let response = client.try_send(request.unwrap_or_else(|error| panic!("{path}: {error}"))).await?;
    whole(response).await
}

/// One GET with headers.
pub async fn get_with(target: &Target, path: &str, headers: &[(&str, &str)]) -> FullResponse {
    let mut client = Http::one(target).await;
    let mut request = client.request(Method::GET, path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client.whole(request.body(body::empty()).unwrap_or_else(|error| panic!("{path}: {error}"))).await
}
