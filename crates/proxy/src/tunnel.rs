//! Upgraded connections: bytes both ways until one side ends, and a proper farewell for a `WebSocket` when we leave.

mod frames;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use rouse_core::slot::Slot;
use rouse_core::time::{Clock as _, Moment};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::time::timeout;

use crate::crowd::Seat;
use crate::pool::Link;
use crate::request::Exchange;
use crate::worker::Worker;
use frames::Frames;

/// How long both sides may take to switch.
const SWITCH: Duration = Duration::from_secs(10);
/// How long a client may go on in silence when its pod has ended.
const LINGER: Duration = Duration::from_secs(1);
/// How long a farewell may take.
const FAREWELL: Duration = Duration::from_secs(1);
/// Bytes on their way, each way.
const BUFFER: usize = 16 * 1024;
/// "Going away", from a server to a client: never masked.
const CLOSE_1001: [u8; 4] = [0x88, 0x02, 0x03, 0xe9];

/// A connection that is about to be upgraded.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) worker: Rc<Worker>,
    pub(crate) client: OnUpgrade,
    pub(crate) pod: OnUpgrade,
    /// The connection to the pod ends with this.
    pub(crate) link: Link,
    /// `None` where no pod was chosen by us.
    pub(crate) slot: Option<Slot>,
    /// The client's place among the connections.
    pub(crate) seat: Rc<Seat>,
    pub(crate) websocket: bool,
}

type Read = ReadHalf<TokioIo<Upgraded>>;
type Write = WriteHalf<TokioIo<Upgraded>>;

impl Tunnel {
    /// Carries bytes from now on. The slot, and the request's line in the books, end with it.
    pub(crate) fn open(self, exchange: Exchange) {
        let tasks = self.worker.tasks.clone();
        tasks.spawn_local(async move {
            let Tunnel { worker, client, pod, link, slot, seat, websocket } = self;
            let _until_the_end = (link, slot, seat);
            let both = async { tokio::try_join!(client, pod) };
            let switched = tokio::select! {
                switched = timeout(SWITCH, both) => switched,
                () = worker.close.cancelled() => return,
            };
            if let Ok(Ok((client, pod))) = switched {
                carry(&worker, client, pod, websocket, &exchange).await;
            }
        });
    }
}

async fn carry(worker: &Worker, client: Upgraded, pod: Upgraded, websocket: bool, exchange: &Exchange) {
    let (from_client, mut to_client) = split(TokioIo::new(client));
    let (from_pod, mut to_pod) = split(TokioIo::new(pod));
    let clock = worker.gateway.settings.clock;
    let (last, frames) = (Cell::new(clock.now()), RefCell::new(Frames::default()));
    let there = pump(from_client, &mut to_pod, |_| last.set(clock.now()));
    let back = pump(from_pod, &mut to_client, |bytes| {
        last.set(clock.now());
        exchange.sent(bytes.len() as u64);
        if websocket {
            frames.borrow_mut().add(bytes);
        }
    });
    let client_done = Cell::new(false);
    // An end is passed on, and the other side may finish; an error ends both.
    let there = async {
        if there.await.is_ok() {
            client_done.set(true);
            std::future::pending::<()>().await;
        }
    };
    let back = async {
        if back.await.is_ok() && !client_done.get() {
            // Without its pod, a client has little left to say, and may not know that it should hang up.
            silence(worker, &last, LINGER).await;
        }
    };
    tokio::select! {
        () = back => {}
        () = there => {}
        () = silence(worker, &last, worker.gateway.settings.limits.stream_idle) => {}
        () = worker.close.cancelled() => {}
    }
    if worker.close.is_cancelled() && websocket && frames.borrow().at_boundary() {
        let farewell = async {
            to_client.write_all(&CLOSE_1001).await.ok();
            to_client.shutdown().await.ok();
        };
        timeout(FAREWELL, farewell).await.ok();
    }
}

/// Ends when nothing has moved for too long.
async fn silence(worker: &Worker, last: &Cell<Moment>, longest: Duration) {
    let clock = worker.gateway.settings.clock;
    loop {
        let due = last.get() + longest;
        if due <= clock.now() {
            return;
        }
        clock.sleep_until(due).await;
    }
}

/// Carries bytes one way until the end, and passes the end on.
async fn pump(mut from: Read, to: &mut Write, moved: impl Fn(&[u8])) -> io::Result<()> {
    let copied = copy(&mut from, to, moved).await;
    // Also after an error: the other side must not wait for more.
    to.shutdown().await.ok();
    copied
}

/// `moved` is told of exactly what was written, so that it knows where a cancelled copy stopped.
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
