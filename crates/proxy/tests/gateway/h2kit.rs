//! Raw HTTP/2 on both sides.

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::Request;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::rig::{PATIENCE, Rig};

/// A client's HTTP/2 connection.
pub(crate) struct H2Client {
    pub(crate) sender: SendRequest<Bytes>,
    _task: JoinSet<()>,
}

impl H2Client {
    pub(crate) async fn new(rig: &Rig) -> Self {
        let stream = TcpStream::connect(rig.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut builder = h2::client::Builder::new();
        builder.initial_connection_window_size(64 << 20);
        let (sender, connection) = builder.handshake(stream).await.unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move { drop(connection.await) });
        Self { sender, _task: task }
    }

    pub(crate) async fn send(
        &mut self,
        request: http::request::Builder,
        end: bool,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let mut ready = self.sender.clone().ready().await.unwrap();
        ready.send_request(request.body(()).unwrap(), end).unwrap()
    }

    pub(crate) async fn get(&mut self, uri: &str) -> ResponseFuture {
        self.send(Request::get(uri), true).await.0
    }
}

/// Sends all of `bytes`, as the windows allow.
pub(crate) async fn upload(stream: &mut SendStream<Bytes>, mut bytes: Bytes, end: bool) {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let room = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
        let Some(Ok(room)) = room else { return };
        let part = bytes.split_to(room.min(bytes.len()));
        stream.send_data(part, end && bytes.is_empty()).unwrap();
    }
}

/// All of a body.
pub(crate) async fn read(mut body: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(data) = timeout(PATIENCE, body.data()).await.expect("more should come") {
        let data = data?;
        body.flow_control().release_capacity(data.len()).unwrap();
        all.extend(&data);
    }
    Ok(all)
}
