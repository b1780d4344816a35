//! Upgraded connections: copies bytes both ways until one side ends, and closes each `WebSocket` with a close frame at shutdown.

mod frames;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use rouse_core::service::Slot;
use rouse_core::time::{Clock as _, Moment};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

use self::frames::Frames;
use super::context::UpstreamContext;
use super::pool::PooledConnection;
use crate::client::ClientConnection;
use crate::telemetry::ResponseRecord;

/// How long both sides may take to switch protocols.
const SWITCH: Duration = Duration::from_secs(10);
/// How long a client may be idle after its pod has closed its side.
const LINGER: Duration = Duration::from_secs(1);
/// How long writing the close frame may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The size of the copy buffer, for each direction.
const BUFFER: usize = 16 * 1024;
/// A close frame with the code 1001, "going away". Frames from a server are not masked.
const CLOSE_1001: [u8; 4] = [0x88, 0x02, 0x03, 0xe9];

/// A connection that is about to be upgraded.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) upstream: Rc<UpstreamContext>,
    pub(crate) client: OnUpgrade,
    pub(crate) pod: OnUpgrade,
    /// Dropping it closes the connection to the pod.
    pub(crate) link: PooledConnection,
    /// `None` where the gateway has not chosen a pod.
    pub(crate) slot: Option<Slot>,
    /// Keeps the client's place in the connection limiter.
    pub(crate) connection: Rc<ClientConnection>,
    pub(crate) websocket: bool,
}

type Read = ReadHalf<TokioIo<Upgraded>>;
type Write = WriteHalf<TokioIo<Upgraded>>;

impl Tunnel {
    /// Copies bytes in a task of its own. The slot and the record of the request end with it.
    pub(crate) fn open(self, record: ResponseRecord) {
        let runtime = Rc::clone(&self.upstream.runtime);
        runtime.spawn(async move {
            let Tunnel { upstream, client, pod, link, slot, connection, websocket } = self;
            let _until_the_end = (link, slot, connection);
            let both = async { tokio::try_join!(client, pod) };
            let switched = tokio::select! {
                switched = timeout(SWITCH, both) => switched,
                () = upstream.runtime.close.cancelled() => return,
            };
            if let Ok(Ok((client, pod))) = switched {
                carry(&upstream, client, pod, websocket, &record).await;
            }
        });
    }
}

async fn carry(
    upstream: &UpstreamContext,
    client: Upgraded,
    pod: Upgraded,
    websocket: bool,
    record: &ResponseRecord,
) {
    let (from_client, mut to_client) = split(TokioIo::new(client));
    let (from_pod, mut to_pod) = split(TokioIo::new(pod));
    let clock = upstream.runtime.clock;
    let (last, frames) = (Cell::new(clock.now()), RefCell::new(Frames::default()));
    let there = pump(from_client, &mut to_pod, |_| last.set(clock.now()));
    let back = pump(from_pod, &mut to_client, |bytes| {
        last.set(clock.now());
        record.sent(bytes.len() as u64);
        if websocket {
            frames.borrow_mut().add(bytes);
        }
    });
    let client_done = Cell::new(false);
    // The end of one side is passed on, and the other side may finish; an error ends both.
    let there = async {
        if there.await.is_ok() {
            client_done.set(true);
            std::future::pending::<()>().await;
        }
    };
    let back = async {
        if back.await.is_ok() && !client_done.get() {
            // A client whose pod has ended may not know that it should close its side, too.
            idle(upstream, &last, LINGER).await;
        }
    };
    tokio::select! {
        () = back => {}
        () = there => {}
        () = idle(upstream, &last, upstream.limits.stream_idle) => {}
        () = upstream.runtime.close.cancelled() => {}
    }
    if upstream.runtime.close.is_cancelled() && websocket && frames.borrow().at_boundary() {
        let closing = async {
            to_client.write_all(&CLOSE_1001).await.ok();
            to_client.shutdown().await.ok();
        };
        timeout(CLOSE_TIMEOUT, closing).await.ok();
    }
}

/// Ends when no byte has moved for `longest`.
async fn idle(upstream: &UpstreamContext, last: &Cell<Moment>, longest: Duration) {
    let clock = upstream.runtime.clock;
    loop {
        let due = last.get() + longest;
        if due <= clock.now() {
            return;
        }
        clock.sleep_until(due).await;
    }
}

/// Copies bytes one way until the end, and passes the end on.
async fn pump(mut from: Read, to: &mut Write, moved: impl Fn(&[u8])) -> io::Result<()> {
    let copied = copy(&mut from, to, moved).await;
    // Also after an error: the other side must not wait for more.
    to.shutdown().await.ok();
    copied
}

/// Copies bytes. `moved` gets exactly the bytes that were written, so that it knows where a cancelled copy stopped.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    moved: impl Fn(&[u8]),
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await?;
        let mut rest = buffer.get(..length).unwrap_or_default();
        if rest.is_empty() {
            return Ok(());
        }
        while !rest.is_empty() {
            let written = to.write(rest).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            let (done, left) = rest.split_at(written.min(rest.len()));
            moved(done);
            rest = left;
        }
        to.flush().await?;
    }
}
