//! HTTP/2 clients and pods, built on the `h2` crate.

use std::future::poll_fn;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::{Connection, SendResponse};
use h2::{RecvStream, SendStream};
use http::{Request, Response};
use rouse_proxy::upstream::UpstreamProtocol;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::rig::{Options, PATIENCE, Pod, Rig};
use super::wire::STUCK;

/// Pods that speak HTTP/2.
pub fn h2c() -> Options {
    Options { protocol: UpstreamProtocol::H2c, ..Options::default() }
}

/// A client's HTTP/2 connection.
pub struct H2Client {
    sender: SendRequest<Bytes>,
    task: JoinSet<()>,
}

impl H2Client {
    pub async fn new(rig: &Rig) -> Self {
        let stream = TcpStream::connect(rig.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut builder = h2::client::Builder::new();
        builder.initial_connection_window_size(64 << 20);
        let (sender, connection) = builder.handshake(stream).await.unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move { drop(connection.await) });
        Self { sender, task }
    }

    /// Sends the head of a request; with `end`, the request has no body.
    pub async fn send(&self, request: http::request::Builder, end: bool) -> (Answer, SendStream<Bytes>) {
        let mut ready = self.sender.clone().ready().await.unwrap();
        let (response, body) = ready.send_request(request.body(()).unwrap(), end).unwrap();
        (Answer(response), body)
    }

    pub async fn get(&self, uri: &str) -> Answer {
        self.send(Request::get(uri), true).await.0
    }

    /// Sends a POST with all of its body.
    pub async fn post(&self, uri: &str, body: impl Into<Bytes>) -> Answer {
        let body = body.into();
        let (answer, mut stream) = self.send(Request::post(uri), body.is_empty()).await;
        upload(&mut stream, body, true).await;
        answer
    }

    /// How many concurrent streams the gateway allows.
    pub fn most_streams(&self) -> usize {
        self.sender.current_max_send_streams()
    }

    /// Waits for the end of the connection.
    pub async fn ended(mut self) {
        while self.task.join_next().await.is_some() {}
    }
}

/// A response that has not arrived yet.
pub struct Answer(ResponseFuture);

impl Answer {
    /// Its head.
    pub async fn head(self) -> Response<RecvStream> {
        timeout(PATIENCE, self.0).await.expect("an answer should come").unwrap()
    }

    /// Its whole body; the status must be 200.
    pub async fn body(self) -> Vec<u8> {
        let response = self.head().await;
        assert_eq!(response.status(), 200);
        read(response.into_body()).await
    }
}

/// Sends all of `bytes`, as the windows allow.
pub async fn upload(stream: &mut SendStream<Bytes>, mut bytes: Bytes, end: bool) {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let room = poll_fn(|context| stream.poll_capacity(context));
        let Some(Ok(room)) = timeout(PATIENCE, room).await.expect("the gateway should accept more data")
        else {
            return;
        };
        let part = bytes.split_to(room.min(bytes.len()));
        stream.send_data(part, end && bytes.is_empty()).unwrap();
    }
}

/// Sends until the gateway takes nothing more.
pub async fn fill(stream: &mut SendStream<Bytes>) {
    let part = Bytes::from(vec![b'x'; 64 * 1024]);
    while timeout(STUCK, upload(stream, part.clone(), false)).await.is_ok() {}
}

/// All of a body.
pub async fn read(mut body: RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(data) = timeout(PATIENCE, body.data()).await.expect("more should come") {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        all.extend(&data);
    }
    all
}

/// Answers 200 with `text`.
pub fn answer(respond: &mut SendResponse<Bytes>, text: &'static str) {
    let mut body = begin(respond);
    body.send_data(Bytes::from_static(text.as_bytes()), true).unwrap();
}

/// Answers 200 and returns the stream for the body.
pub fn begin(respond: &mut SendResponse<Bytes>) -> SendStream<Bytes> {
    respond.send_response(Response::new(()), false).unwrap()
}

impl Pod {
    /// The next connection that the gateway makes.
    pub async fn accept_h2(&self) -> Connection<TcpStream, Bytes> {
        h2::server::handshake(self.accept_raw().await).await.unwrap()
    }

    /// Does `each` with every request from now on, on connections that `builder` makes. Dropping it ends the pod.
    pub fn serve_h2<F: Future<Output = ()> + Send + 'static>(
        self,
        builder: h2::server::Builder,
        each: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + 'static,
    ) -> JoinSet<()> {
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, builder, each) = (self.accept_raw().await, builder.clone(), each.clone());
                connections.spawn(async move {
                    let mut connection = builder.handshake(stream).await.unwrap();
                    let mut streams = JoinSet::new();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        streams.spawn(each(request, respond));
                    }
                });
            }
        });
        serving
    }
}
