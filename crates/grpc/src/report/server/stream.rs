//! One stream: reads the messages of a reporter under deadlines, and delivers what they say.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rouse_core::scale::Reporter;
use rouse_net::auth::{AuthError, PodIdentity};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::super::stream_protocol::{ReporterHello, StreamEvent, StreamProtocol, StreamViolation};
use super::super::wire::{self, ReporterRole};
use super::reporters::{Connected, ConnectedReporter};
use super::stream_end::StreamEnd;
use super::{FIRST_MESSAGE_TIMEOUT, IDLE_TIMEOUT, STATE_TIMEOUT, ServerParts};
use crate::proto::report::controller_message::Kind;
use crate::proto::report::{ControllerMessage, ReporterMessage, Welcome};

/// How often the token of a stream is checked again: it may have expired, or be revoked.
const TOKEN_CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// A stream whose sender was authenticated.
pub(super) struct ReporterStream {
    pub(super) server: Arc<ServerParts>,
    pub(super) pod: PodIdentity,
    pub(super) token: String,
    pub(super) incoming: Streaming<ReporterMessage>,
    pub(super) commands: mpsc::Sender<ControllerMessage>,
    /// The server stops, or the connection is gone.
    pub(super) ended: CancellationToken,
    pub(super) stop: CancellationToken,
}

impl ReporterStream {
    /// Reads the stream to its end.
    pub(super) async fn read(mut self) -> StreamEnd {
        match self.run().await {
            Ok(()) => StreamEnd::Left,
            Err(end) => end,
        }
    }

    async fn run(&mut self) -> Result<(), StreamEnd> {
        let mut stream_protocol = StreamProtocol::new(self.server.clock.now());
        let Some(greeting) = self.hello(&mut stream_protocol).await? else { return Ok(()) };
        let connected = self.enter(greeting)?;
        let result = self.reports(&mut stream_protocol, &connected).await;
        self.server.reporters.leave(&connected);
        // Its own queue and a newer stream cancel a stream in the same way as a connection that is gone.
        result.map_err(|end| if end == StreamEnd::Broken { self.why_broken(&connected) } else { end })
    }

    fn enter(&self, greeting: ReporterHello) -> Result<Arc<Connected>, StreamEnd> {
        let welcome = Kind::Welcome(Welcome { version: self.server.version.clone() });
        let reporter = Reporter::new(self.pod.uid.as_str());
        let since = self.server.clock.now();
        let facts = ConnectedReporter { reporter, pod: self.pod.clone(), greeting, since };
        let connected = Connected::new(facts, self.commands.clone(), self.ended.clone());
        let role = connected.facts.greeting.role;
        self.server.reporters.enter(&connected, wire::command(welcome))?;
        // One that a newer stream has replaced already is none.
        connected.deliver(|reporter| self.server.sink.joined(reporter, role)).ok();
        Ok(connected)
    }

    /// Waits for the hello. `None`: the stream has ended before.
    async fn hello(
        &mut self,
        stream_protocol: &mut StreamProtocol,
    ) -> Result<Option<ReporterHello>, StreamEnd> {
        let deadline = Instant::now() + FIRST_MESSAGE_TIMEOUT;
        while let Some(message) = self.next(deadline, StreamEnd::NoHello).await? {
            if let StreamEvent::Hello(greeting) = stream_protocol.take(message, self.server.clock.now())? {
                return Ok(Some(greeting));
            }
        }
        Ok(None)
    }

    /// Reads reports, until the stream ends or must end.
    async fn reports(
        &mut self,
        stream_protocol: &mut StreamProtocol,
        connected: &Connected,
    ) -> Result<(), StreamEnd> {
        let (server, token, pod) = (Arc::clone(&self.server), self.token.clone(), self.pod.clone());
        let mut refused = pin!(token_refused(&server, &token, &pod));
        let mut state_deadline = Instant::now() + STATE_TIMEOUT;
        loop {
            let idle_deadline = Instant::now() + IDLE_TIMEOUT;
            let (deadline, late) = if !stream_protocol.is_complete() && state_deadline < idle_deadline {
                (state_deadline, StreamEnd::NoState)
            } else {
                (idle_deadline, StreamEnd::Silent)
            };
            let message = tokio::select! {
                end = refused.as_mut() => return Err(end),
                message = self.next(deadline, late) => message?,
            };
            let Some(message) = message else { return Ok(()) };
            let heard = stream_protocol.take(message, self.server.clock.now())?;
            if stream_protocol.is_complete() {
                state_deadline = Instant::now() + STATE_TIMEOUT;
            }
            self.take(heard, stream_protocol, connected)?;
        }
    }

    fn take(
        &self,
        heard: StreamEvent,
        stream_protocol: &StreamProtocol,
        connected: &Connected,
    ) -> Result<(), StreamEnd> {
        let StreamEvent::Loads { update, parked, envoys } = heard else { return Ok(()) };
        let entries = update.samples.len();
        connected.deliver(|reporter| {
            self.server.sink.heard(reporter, update);
            if parked {
                self.server.sink.parked(reporter, stream_protocol.parked());
            }
            if connected.facts.greeting.role == ReporterRole::Xds {
                self.server.sink.envoys(reporter, envoys);
            }
        })?;
        self.server.metrics.accepted(entries);
        Ok(())
    }

    /// Why the stream broke or was cancelled.
    fn why_broken(&self, connected: &Connected) -> StreamEnd {
        if connected.is_replaced() {
            StreamEnd::Replaced
        } else if self.commands.capacity() == 0 {
            StreamEnd::Unread
        } else {
            StreamEnd::Broken
        }
    }

    /// The next message. `None`: the reporter has ended the stream.
    async fn next(
        &mut self,
        deadline: Instant,
        late: StreamEnd,
    ) -> Result<Option<ReporterMessage>, StreamEnd> {
        tokio::select! {
            () = self.stop.cancelled() => Err(StreamEnd::Stopping),
            () = self.ended.cancelled() => Err(StreamEnd::Broken),
            message = timeout_at(deadline, self.incoming.message()) => match message {
                Ok(message) => message.map_err(|status| unreadable(&status)),
                Err(_) => Err(late),
            },
        }
    }
}

/// Why a message cannot be read.
fn unreadable(status: &Status) -> StreamEnd {
    match status.code() {
        Code::OutOfRange => StreamEnd::Oversized,
        Code::Internal | Code::Unimplemented => {
            StreamEnd::Violation(StreamViolation::Malformed(status.message().to_owned()))
        }
        _ => StreamEnd::Broken,
    }
}

/// Checks the token again from time to time. Ends when it is not valid any more.
async fn token_refused(server: &ServerParts, token: &str, pod: &PodIdentity) -> StreamEnd {
    loop {
        sleep_until(Instant::now() + TOKEN_CHECK_INTERVAL).await;
        match server.authenticator.authenticate(token).await {
            Ok(again) if again == *pod => {}
            Ok(_) => return StreamEnd::Unauthenticated("the token is of another pod now".to_owned()),
            Err(AuthError::Refused(reason)) => return StreamEnd::Unauthenticated(reason),
            // It was valid, and nothing says that it is not.
            Err(AuthError::Unavailable(_)) => {}
        }
    }
}
