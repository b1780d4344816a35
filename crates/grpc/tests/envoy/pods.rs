//! Pods and gateways: small servers that answer with their own address.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Request, Response, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rouse_net::tls::{Alpn, ServerTls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// What a pod speaks.
#[derive(Clone)]
pub(crate) enum Speaks {
    Http1,
    Http2,
    /// TLS; the protocol is that of ALPN.
    Tls(Arc<ServerTls>),
}

/// The bytes of a response, as the test sends them.
pub(crate) type Chunks = mpsc::Sender<Bytes>;

/// A server with an address of its own.
///
/// `/stream` answers with what the test sends, `/echo` with the body of the request, `/silent` with nothing, an upgrade with an echo,
/// and anything else with the address.
pub(crate) struct Pod {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    streams: mpsc::Receiver<Chunks>,
    // Ends with the pod.
    _accepting: JoinSet<()>,
}

struct Shared {
    address: SocketAddr,
    speaks: Speaks,
    streams: mpsc::Sender<Chunks>,
    /// The name and the protocol of each handshake.
    handshakes: Mutex<Vec<(Option<String>, Option<Alpn>)>>,
    upgraded: Mutex<JoinSet<()>>,
}

impl Pod {
    pub(crate) async fn start(ip: impl Into<IpAddr>, speaks: Speaks) -> Self {
        let listener = TcpListener::bind((ip.into(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, streams) = mpsc::channel(8);
        let shared = Arc::new(Shared {
            address,
            speaks,
            streams: sender,
            handshakes: Mutex::default(),
            upgraded: Mutex::default(),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, streams, _accepting: accepting }
    }

    /// One of the addresses `127.0.0.0/8`.
    pub(crate) async fn numbered(number: u8, speaks: Speaks) -> Self {
        Self::start([127, 0, 1, number], speaks).await
    }

    /// The next request for `/stream`.
    pub(crate) async fn next_stream(&mut self) -> Chunks {
        self.streams.recv().await.unwrap()
    }

    /// The names (SNI) and protocols (ALPN) of all TLS handshakes.
    pub(crate) fn handshakes(&self) -> Vec<(Option<String>, Option<Alpn>)> {
        self.shared.handshakes.lock().unwrap().clone()
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream, Arc::clone(&shared)));
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let tls = match &shared.speaks {
        Speaks::Http1 => return speak(stream, Alpn::Http1, shared).await,
        Speaks::Http2 => return speak(stream, Alpn::H2, shared).await,
        Speaks::Tls(tls) => Arc::clone(tls),
    };
    let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
    // A client that does not trust the certificate ends the handshake.
    let Ok((stream, handshake)) = tls.accept(stream, deadline).await else { return };
    let seen = (handshake.sni.map(Into::into), handshake.alpn);
    shared.handshakes.lock().unwrap().push(seen);
    speak(stream, handshake.alpn.unwrap_or(Alpn::Http1), shared).await;
}

async fn speak<IO>(stream: IO, protocol: Alpn, shared: Arc<Shared>)
where
    IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stream = TokioIo::new(stream);
    let service = service_fn(move |request| answer(request, Arc::clone(&shared)));
    // A connection that breaks ends its requests, which the test sees.
    match protocol {
        Alpn::Http1 => {
            http1::Builder::new().serve_connection(stream, service).with_upgrades().await.ok();
        }
        Alpn::H2 => {
            http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await.ok();
        }
    }
}

async fn answer(
    mut request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<BoxBody<Bytes, hyper::Error>>, Infallible> {
    let text = |text: String| Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed();
    if request.headers().contains_key(header::UPGRADE) {
        let upgrade = hyper::upgrade::on(&mut request);
        shared.upgraded.lock().unwrap().spawn(async move {
            let (mut reader, mut writer) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
            tokio::io::copy(&mut reader, &mut writer).await.ok();
        });
        let response = Response::builder().status(101).header("connection", "upgrade");
        return Ok(response.header("upgrade", "websocket").body(text(String::new())).unwrap());
    }
    let body = match request.uri().path() {
        "/echo" => request.into_body().boxed(),
        "/silent" => std::future::pending().await,
        "/stream" => {
            let (chunks, queue) = mpsc::channel(1);
            shared.streams.send(chunks).await.unwrap();
            StreamBody::new(chunks_of(queue)).map_err(|never: Infallible| match never {}).boxed()
        }
        _ => text(shared.address.to_string()),
    };
    Ok(Response::new(body))
}

/// The frames of a body.
pub(crate) fn chunks_of(
    queue: mpsc::Receiver<Bytes>,
) -> impl stream::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + Sync {
    let next = |mut queue: mpsc::Receiver<Bytes>| async move { Some((queue.recv().await?, queue)) };
    // It is polled by one task at a time; the body of a response must be `Sync` all the same.
    stream::unfold(queue, next).map(|chunk| Ok(Frame::data(chunk)))
}
