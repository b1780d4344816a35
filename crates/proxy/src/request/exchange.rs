//! One request's line in the books, in the metrics as in the access log.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::{Method, Request, Version, header};
use http_body::Body as _;
use hyper::body::Incoming;
use rouse_core::drain::Work;
use rouse_core::time::{Clock as _, Moment};

use super::{Answer, protocol};
use crate::access::Note;
use crate::answer;
use crate::body::AnswerBody;
use crate::connection::Client;
use crate::crowd::Member;
use crate::error::Failure;
use crate::gateway::Route;
use crate::metrics::{InFlight, Protocol, RouteName, method_label};
use crate::worker::Worker;

/// One request's line in the books, written when this is dropped. Until somebody says what became of the
/// request, its client has gone.
#[derive(Debug)]
pub(crate) struct Exchange {
    worker: Rc<Worker>,
    member: Rc<Member>,
    route: RouteName,
    protocol: Protocol,
    /// Its method, as metrics call it.
    method: &'static str,
    /// Whether the client wants no body, over a protocol where hyper would send it one.
    bodiless: bool,
    pub(super) began: Moment,
    code: u16,
    /// The status of the response under way: what is written down if it comes to its end.
    status: u16,
    /// For the access log, if there is one.
    note: Option<Box<Note>>,
    _in_flight: InFlight,
    _work: Work,
}

/// nginx' number for a client that closed its request.
const CLIENT_GONE: u16 = 499;

impl Exchange {
    pub(super) fn begin(
        worker: &Rc<Worker>,
        client: &Client,
        route: Option<&Arc<Route>>,
        request: &Request<Incoming>,
        grpc: bool,
    ) -> Self {
        let gateway = &worker.gateway;
        client.member.began();
        // Not the host or the path: anybody could fill the books with those.
        let route = route.map_or(&gateway.no_route, |route| &route.name).clone();
        Self {
            began: gateway.settings.clock.now(),
            _in_flight: gateway.metrics.begin(&route),
            _work: gateway.under_way().begin(),
            worker: Rc::clone(worker),
            member: Rc::clone(&client.member),
            route,
            protocol: protocol(request, grpc),
            method: method_label(request.method()),
            bodiless: request.method() == Method::HEAD && request.version() == Version::HTTP_2,
            note: gateway.settings.access.as_ref().map(|_| Note::of(request, client.address)),
            code: CLIENT_GONE,
            status: CLIENT_GONE,
        }
    }

    pub(crate) fn worker(&self) -> &Rc<Worker> {
        &self.worker
    }

    /// Whether it came over HTTP/1.
    pub(crate) fn is_http1(&self) -> bool {
        matches!(self.protocol, Protocol::http1)
    }

    /// The answer is our own, and is written down as `code`.
    pub(super) fn answered(&mut self, code: u16, mut answer: Answer) -> Answer {
        self.code = code;
        let length = answer.body().size_hint().exact().unwrap_or(0);
        if self.bodiless && length > 0 {
            *answer.body_mut() = AnswerBody::Ours(None);
            answer.headers_mut().insert(header::CONTENT_LENGTH, length.into());
        }
        if self.method != "HEAD" {
            self.sent(length);
        }
        answer
    }

    /// The answer is what the client hears of `failure`.
    pub(super) fn fails(&mut self, failure: &Failure, grpc: bool) -> Answer {
        self.failed(failure);
        self.answered(failure.status().as_u16(), answer::to(failure, grpc))
    }

    /// The connection speaks something else from now on.
    pub(crate) fn switched(&mut self, code: u16) {
        self.code = code;
    }

    /// It did not come to a pod's answer.
    pub(super) fn failed(&self, failure: &Failure) {
        if let Some(note) = &self.note {
            note.failed(failure.code());
        }
    }

    /// So much of a body was sent to the client.
    pub(crate) fn sent(&self, bytes: u64) {
        if let Some(note) = &self.note {
            note.sent(bytes);
        }
    }

    /// The request is sent to `upstream`.
    pub(crate) fn goes_to(&self, upstream: SocketAddr, cold_start: bool) {
        if let Some(note) = &self.note {
            note.goes_to(upstream, cold_start);
        }
    }

    /// The response begins.
    pub(crate) fn begins(&mut self, status: u16) {
        self.status = status;
    }

    /// The response came to its end.
    pub(crate) fn completed(&mut self) {
        self.code = self.status;
    }

    /// The pod broke off in the middle of its response.
    pub(crate) fn broken_by_pod(&mut self) {
        self.breaks_off(&Failure::UpstreamReset);
    }

    /// The time for the whole request is up.
    pub(crate) fn took_too_long(&mut self) {
        self.breaks_off(&Failure::RequestTimeout);
    }

    fn breaks_off(&mut self, failure: &Failure) {
        self.failed(failure);
        self.code = failure.status().as_u16();
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let gateway = &self.worker.gateway;
        let now = gateway.settings.clock.now();
        let took = now.since(self.began);
        self.member.ended(now);
        gateway.metrics.ended(&self.route, self.code, self.protocol, self.method, took);
        if let (Some(note), Some(log)) = (&self.note, &gateway.settings.access) {
            if self.code == CLIENT_GONE {
                self.failed(&Failure::ClientGone);
            }
            gateway.metrics.access_log_dropped(note.write(&**log, &self.route, self.code, took));
        }
    }
}
