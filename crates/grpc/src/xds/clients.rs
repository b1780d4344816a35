//! The connected clients: who they are, what they are subscribed to, and which versions they have acknowledged.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::access::{ClientIdentity, LimitKey};
use super::stream_end::StreamEnd;

/// A connected client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectedClient {
    /// Who it is.
    pub identity: ClientIdentity,
    /// What it calls itself. It proves nothing. Empty before its first request.
    pub node_id: String,
    /// The number of the stream, which no other stream of this process has.
    pub stream: u64,
    /// The names whose endpoints it is subscribed to, in order.
    pub endpoints: Vec<Arc<str>>,
}

/// What an open stream says of its client.
pub(super) trait ClientStream: Send + Sync {
    /// What the client calls itself.
    fn node_id(&self) -> String;

    /// The names whose endpoints the client is subscribed to, in order.
    fn endpoint_names(&self) -> Vec<Arc<str>>;

    /// What the client knows of the endpoints of this name.
    fn knows(&self, name: &str) -> ClientKnowledge;
}

/// What a client knows of the endpoints of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientKnowledge {
    /// It is not subscribed to it.
    NotSubscribed,
    /// It was not sent, or the client has not answered, or has rejected it.
    NotAcknowledged,
    /// The client accepted this version; `None`: that there is none.
    Acknowledged(Option<u64>),
}

/// The most streams.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientLimits {
    pub(super) streams: usize,
    pub(super) per_client: usize,
}

/// The clients of a server.
pub(super) struct Clients {
    limits: ClientLimits,
    state: Mutex<State>,
    /// Changes when an answer or the end of a stream may change what [`Clients::acknowledged`] says.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    next: u64,
    streams: BTreeMap<u64, Entry>,
    by_client: HashMap<LimitKey, usize>,
}

struct Entry {
    identity: ClientIdentity,
    stream: Arc<dyn ClientStream>,
}

/// The place of one stream. Dropping it gives it back.
pub(super) struct ClientPlace {
    clients: Arc<Clients>,
    pub(super) number: u64,
}

impl Clients {
    pub(super) fn new(limits: ClientLimits) -> Self {
        Self { limits, state: Mutex::default(), changed: watch::Sender::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stream.
    pub(super) fn enter(
        self: &Arc<Self>,
        identity: ClientIdentity,
        stream: Arc<dyn ClientStream>,
    ) -> Result<ClientPlace, StreamEnd> {
        let ClientLimits { streams, per_client } = self.limits;
        let mut state = self.state();
        if state.streams.len() >= streams {
            return Err(StreamEnd::TooManyStreams(streams));
        }
        let key = identity.limit_key();
        if state.by_client.get(&key).is_some_and(|open| *open >= per_client) {
            return Err(StreamEnd::TooManyOfClient(per_client));
        }
        *state.by_client.entry(key).or_default() += 1;
        state.next += 1;
        let number = state.next;
        state.streams.insert(number, Entry { identity, stream });
        Ok(ClientPlace { clients: Arc::clone(self), number })
    }

    /// Something that a client knows has changed.
    pub(super) fn tell(&self) {
        self.changed.send_modify(|number| *number += 1);
    }

    /// Changes whenever [`Clients::acknowledged`] may say something else.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The streams, so that no lock is held while they are asked.
    fn streams(&self) -> Vec<(u64, ClientIdentity, Arc<dyn ClientStream>)> {
        let state = self.state();
        let streams = state.streams.iter();
        streams.map(|(number, entry)| (*number, entry.identity.clone(), Arc::clone(&entry.stream))).collect()
    }

    /// Whether all clients that are subscribed to the endpoints of a name have acknowledged this version; `None`: that there are none.
    pub(super) fn acknowledged(&self, name: &str, version: Option<u64>) -> bool {
        self.streams().iter().all(|(_, _, stream)| match stream.knows(name) {
            ClientKnowledge::NotSubscribed => true,
            ClientKnowledge::NotAcknowledged => false,
            ClientKnowledge::Acknowledged(known) => known == version,
        })
    }

    /// All clients, in the order in which they connected.
    pub(super) fn list(&self) -> Vec<ConnectedClient> {
        let client = |(number, identity, stream): (u64, ClientIdentity, Arc<dyn ClientStream>)| {
            let endpoints = stream.endpoint_names();
            ConnectedClient { identity, node_id: stream.node_id(), stream: number, endpoints }
        };
        self.streams().into_iter().map(client).collect()
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        let mut state = self.clients.state();
        if let Some(entry) = state.streams.remove(&self.number) {
            let key = entry.identity.limit_key();
            if let Some(open) = state.by_client.get_mut(&key) {
                *open -= 1;
                if *open == 0 {
                    state.by_client.remove(&key);
                }
            }
        }
        drop(state);
        self.clients.tell();
    }
}
