//! One stream: reads the requests of a client, and sends what its rules say, in a task of its own.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rouse_core::time::Moment;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::{Code, Status, Streaming};

use super::access::ClientIdentity;
use super::cache::CacheView;
use super::clients::{ClientKnowledge, ClientStream};
use super::delta::{ClientAnswer, RequestViolation};
use super::metrics::SentResponse;
use super::resource_type::PerType;
use super::server::ServerParts;
use super::stream_end::StreamEnd;

/// How long a stream may take to send its first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a response waits for the client to read the ones before it.
const SEND_TIMEOUT: Duration = Duration::from_mins(1);
/// The longest node id and the longest text of a rejection that is kept or logged, in bytes.
const MAX_TEXT: usize = 1024;

/// The rules of a kind of stream.
pub(super) trait StreamRules: Send + 'static {
    type Request: Send + 'static;
    type Response: Send + 'static;

    /// What the client calls itself.
    fn node_id(request: &Self::Request) -> Option<&str>;

    /// Takes a request.
    fn request(
        &mut self,
        request: Self::Request,
        view: &CacheView<'_>,
        now: Moment,
    ) -> Result<Option<ClientAnswer>, RequestViolation>;

    /// What can be sent now.
    fn respond(&mut self, view: &CacheView<'_>, now: Moment) -> Vec<Self::Response>;

    /// When to ask for responses again, without a request or a change.
    fn wake_after(&self, now: Moment) -> Option<Duration>;

    /// What is counted of a response.
    fn measure(response: &Self::Response) -> Option<SentResponse>;

    /// The names whose endpoints the client is subscribed to, in order.
    fn endpoint_names(&self) -> Vec<Arc<str>>;

    /// What the client knows of the endpoints of this name.
    fn knows(&self, name: &str) -> ClientKnowledge;
}

/// The state of one stream. The server asks it what the client knows.
pub(super) struct SharedStream<R> {
    rules: Mutex<R>,
    node_id: OnceLock<String>,
}

impl<R> SharedStream<R> {
    pub(super) fn new(rules: R) -> Self {
        Self { rules: Mutex::new(rules), node_id: OnceLock::new() }
    }

    fn rules(&self) -> MutexGuard<'_, R> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: StreamRules> ClientStream for SharedStream<R> {
    fn node_id(&self) -> String {
        self.node_id.get().cloned().unwrap_or_default()
    }

    fn endpoint_names(&self) -> Vec<Arc<str>> {
        self.rules().endpoint_names()
    }

    fn knows(&self, name: &str) -> ClientKnowledge {
        self.rules().knows(name)
    }
}

/// The task of one stream.
pub(super) struct StreamTask<R: StreamRules> {
    pub(super) server: Arc<ServerParts>,
    pub(super) identity: ClientIdentity,
    pub(super) number: u64,
    pub(super) stream: Arc<SharedStream<R>>,
    pub(super) incoming: Streaming<R::Request>,
    pub(super) outgoing: mpsc::Sender<R::Response>,
    /// How many requests there were.
    pub(super) requests: u64,
    /// The hash of what was rejected last, for each type.
    pub(super) rejected: PerType<Option<u64>>,
}

impl<R: StreamRules> StreamTask<R> {
    /// Serves the stream to its end.
    pub(super) async fn run(mut self) -> StreamEnd {
        // Before the first look at the cache: a change after it wakes the stream.
        let mut changes = self.server.cache.watch();
        let first_deadline = Instant::now() + FIRST_REQUEST_TIMEOUT;
        loop {
            let wake = self.stream.rules().wake_after(self.server.clock.now());
            let wake_at = wake.map(|after| Instant::now() + after);
            let next = tokio::select! {
                () = self.server.stop.cancelled() => return StreamEnd::Stopping,
                () = self.outgoing.closed() => return StreamEnd::Broken,
                () = sleep_until(first_deadline), if self.requests == 0 => return StreamEnd::NoRequest,
                message = self.incoming.message() => match message {
                    Ok(Some(request)) => self.take(request),
                    Ok(None) => return StreamEnd::Left,
                    Err(status) => return self.unreadable(&status),
                },
                () = sleep_until(wake_at.unwrap_or(first_deadline)), if wake_at.is_some() => Ok(()),
                // The server keeps the cache, so that this is never an error.
                _ = changes.changed() => Ok(()),
            };
            if let Err(end) = next {
                return end;
            }
            if let Err(end) = self.respond().await {
                return end;
            }
        }
    }

    fn take(&mut self, request: R::Request) -> Result<(), StreamEnd> {
        self.requests += 1;
        if let Some(node_id) = R::node_id(&request) {
            self.stream.node_id.get_or_init(|| shorten(node_id));
        }
        let now = self.server.clock.now();
        let answer = {
            let view = self.server.cache.view();
            self.stream.rules().request(request, &view, now)?
        };
        if let Some(answer) = answer {
            self.answered(&answer);
        }
        self.server.clients.tell();
        Ok(())
    }

    fn answered(&mut self, answer: &ClientAnswer) {
        let ClientAnswer { kind, after, resources, rejected } = answer;
        self.server.metrics.answered(*kind, rejected.is_some(), *after);
        let Some(rejected) = rejected else { return };
        // A client that subscribes again and again to what it rejects must not fill the log.
        let mut hasher = DefaultHasher::new();
        resources.hash(&mut hasher);
        if self.rejected.of_mut(*kind).replace(hasher.finish()) == Some(hasher.finish()) {
            return;
        }
        let (client, node_id) = (self.identity.to_string(), self.stream.node_id());
        let first = resources.first().map_or("", |(name, _)| name);
        let (number, reason) = (resources.len(), shorten(rejected));
        tracing::warn!(
            client,
            node_id,
            stream = self.number,
            r#type = kind.as_str(),
            resources = number,
            first,
            reason,
            "an Envoy rejected resources, and keeps those that it had"
        );
    }

    /// Sends what can be sent.
    async fn respond(&self) -> Result<(), StreamEnd> {
        let now = self.server.clock.now();
        let responses = {
            let view = self.server.cache.view();
            self.stream.rules().respond(&view, now)
        };
        for response in responses {
            let sent = R::measure(&response);
            let deadline = Instant::now() + SEND_TIMEOUT;
            tokio::select! {
                () = self.server.stop.cancelled() => return Err(StreamEnd::Stopping),
                queued = timeout_at(deadline, self.outgoing.send(response)) => match queued {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Err(StreamEnd::Broken),
                    Err(_) => return Err(StreamEnd::Unread),
                },
            }
            if let Some(sent) = sent {
                self.server.metrics.sent(sent);
            }
        }
        Ok(())
    }

    /// Why a request cannot be read.
    fn unreadable(&self, status: &Status) -> StreamEnd {
        match status.code() {
            Code::OutOfRange => StreamEnd::Oversized(self.server.limits.request_bytes),
            Code::Internal | Code::Unimplemented => StreamEnd::Malformed(status.message().to_owned()),
            _ => StreamEnd::Broken,
        }
    }
}

/// A text of a client, short enough for the log.
fn shorten(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_TEXT)).unwrap_or_default().to_owned()
}
