//! What a command that runs prints: one thread owns the output, so that a slow terminal holds up nobody else.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// How many lines may wait to be printed.
const WAITING: usize = 4096;
/// How many of these places are for what we say ourselves: pods may print without end.
const RESERVED: usize = 1024;

/// Where lines are left to be printed.
#[derive(Debug, Clone)]
pub struct Screen {
    lines: Sender<Message>,
    lost: Arc<AtomicU64>,
    /// The places for what pods print.
    places: Arc<Semaphore>,
}

#[derive(Debug)]
enum Message {
    /// A line; one of a pod has a place until it is printed.
    Line(String, Option<OwnedSemaphorePermit>),
    End,
}

/// The thread that prints.
#[derive(Debug)]
pub struct Painter {
    lines: Sender<Message>,
    done: oneshot::Receiver<()>,
}

impl Screen {
    /// Prints to `out`, from a thread of its own.
    pub fn open(out: impl Write + Send + 'static) -> io::Result<(Self, Painter)> {
        let (lines, waiting) = channel(WAITING);
        let (end, done) = oneshot::channel();
        let places = Arc::new(Semaphore::new(WAITING - RESERVED));
        let screen = Self { lines: lines.clone(), lost: Arc::default(), places };
        let lost = Arc::clone(&screen.lost);
        std::thread::Builder::new().name("screen".to_owned()).spawn(move || {
            paint(out, waiting, &lost);
            // Nobody may wait for it any more.
            end.send(()).ok();
        })?;
        Ok((screen, Painter { lines, done }))
    }

    /// Something that we have to say.
    pub fn say(&self, line: impl Into<String>) {
        self.send(Message::Line(line.into(), None));
    }

    /// Something that a pod printed. Waits for as long as the terminal cannot keep up.
    pub async fn pass_on(&self, line: impl Into<String>) {
        // An error would mean that there are no places any more, and they are never closed.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        self.send(Message::Line(line.into(), place));
    }

    fn send(&self, message: Message) {
        if self.lines.try_send(message).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Painter {
    /// Prints what waits, but not for longer than this: a terminal that was halted would keep us for ever.
    pub async fn finish(self, within: Duration) {
        let Self { lines, done } = self;
        let last = async {
            lines.send(Message::End).await.ok();
            done.await.ok();
        };
        timeout(within, last).await.ok();
    }
}

fn paint(mut out: impl Write, mut waiting: Receiver<Message>, lost: &AtomicU64) {
    // Whoever read it may be gone, as `head` is; requests are served all the same.
    while let Some(Message::Line(line, place)) = waiting.blocking_recv() {
        writeln!(out, "{line}").ok();
        drop(place);
        if waiting.is_empty() {
            catch_up(&mut out, lost);
        }
    }
    catch_up(&mut out, lost);
}

/// All is printed that there is.
fn catch_up(out: &mut impl Write, lost: &AtomicU64) {
    let lost = lost.swap(0, Ordering::Relaxed);
    if lost > 0 {
        writeln!(out, "… {lost} lines not shown: they came faster than they could be printed").ok();
    }
    out.flush().ok();
}
