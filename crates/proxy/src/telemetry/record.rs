//! The record of one request: its outcome, written to the metrics and the access log when the request ends.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::Version;
use rouse_core::load_meter::{LoadGuard, LoadMeter};
use rouse_core::shutdown::{InFlightCounter, InFlightGuard};
use rouse_core::time::{Clock as _, Moment};
use rouse_net::clock::TokioClock;

use super::access_log::{AccessLog, PendingEntry};
use super::metrics::{InFlight, Metrics, NO_ROUTE, RequestProtocol, RouteName, method_label};
use crate::client::RequestGuard;
use crate::error::Failure;
use crate::message::RequestHead;

/// nginx's status for a client that closed its request.
const CLIENT_GONE: u16 = 499;

/// Writes the records of one worker to the metrics and the access log.
#[derive(Debug)]
pub(crate) struct Recorder {
    clock: TokioClock,
    metrics: Metrics,
    /// The route name of requests that no route matches.
    no_route: RouteName,
    access_log: Option<Arc<dyn AccessLog>>,
    under_way: Arc<InFlightCounter>,
}

impl Recorder {
    pub(crate) fn new(
        clock: TokioClock,
        metrics: Metrics,
        access_log: Option<Arc<dyn AccessLog>>,
        under_way: &Arc<InFlightCounter>,
    ) -> Rc<Self> {
        let under_way = Arc::clone(under_way);
        Rc::new(Self { clock, metrics, no_route: NO_ROUTE.into(), access_log, under_way })
    }

    /// A request begins. `request` counts it on its client connection.
    pub(crate) fn begin(
        self: &Rc<Self>,
        route: Option<&RouteName>,
        head: &impl RequestHead,
        grpc: bool,
        client: SocketAddr,
        request: RequestGuard,
    ) -> RequestRecord {
        // Not the host or the path: a client could fill the metrics with those.
        let route = route.unwrap_or(&self.no_route).clone();
        let protocol = match head.version() {
            _ if grpc => RequestProtocol::grpc,
            Version::HTTP_2 => RequestProtocol::http2,
            _ => RequestProtocol::http1,
        };
        RequestRecord {
            began: self.clock.now(),
            _in_flight: self.metrics.begin(&route),
            _work: self.under_way.begin(),
            recorder: Rc::clone(self),
            request,
            route,
            protocol,
            method: method_label(head.method()),
            note: self.access_log.as_ref().map(|_| PendingEntry::new(head, client)),
            code: CLIENT_GONE,
            status: CLIENT_GONE,
            load: None,
        }
    }
}

/// The record of one request, written when it is dropped. A request that ends without an outcome has lost its client.
#[derive(Debug)]
pub(crate) struct RequestRecord {
    recorder: Rc<Recorder>,
    request: RequestGuard,
    route: RouteName,
    protocol: RequestProtocol,
    /// The method, as metrics call it.
    method: &'static str,
    began: Moment,
    /// The status that is recorded.
    code: u16,
    /// The status of the response under way, which is recorded if it is completed.
    status: u16,
    /// For the access log, if there is one.
    note: Option<Box<PendingEntry>>,
    _in_flight: InFlight,
    _work: InFlightGuard,
    /// Counts the request as load of its route; `None` if it is none, or nothing reports it.
    load: Option<LoadGuard>,
}

impl RequestRecord {
    pub(crate) fn began(&self) -> Moment {
        self.began
    }

    /// Counts the request as load, until it ends.
    pub(crate) fn count_load(&mut self, meter: Option<&Arc<LoadMeter>>) {
        self.load = meter.map(LoadMeter::begin);
    }

    /// What an attempt to send the request may read and write.
    pub(crate) fn attempt(&self) -> AttemptRecord<'_> {
        AttemptRecord(self)
    }

    /// The response that a pod sends goes on with this.
    pub(crate) fn into_response(self) -> ResponseRecord {
        ResponseRecord(self)
    }

    /// The gateway itself answers, with a body of `length` bytes.
    pub(crate) fn answered(&mut self, code: u16, length: u64) {
        self.code = code;
        if self.method != "HEAD" {
            self.sent(length);
        }
    }

    /// No pod answered.
    pub(crate) fn failed(&self, failure: &Failure) {
        if let Some(note) = &self.note {
            note.failed(failure.code());
        }
    }

    fn sent(&self, bytes: u64) {
        if let Some(note) = &self.note {
            note.sent(bytes);
        }
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let Recorder { clock, metrics, access_log, .. } = &*self.recorder;
        let now = clock.now();
        let took = now.since(self.began);
        self.request.end(now);
        metrics.ended(&self.route, self.code, self.protocol, self.method, took);
        if let (Some(note), Some(log)) = (&self.note, access_log) {
            if self.code == CLIENT_GONE {
                self.failed(&Failure::ClientGone);
            }
            metrics.access_log_dropped(note.write(&**log, &self.route, self.code, took));
        }
    }
}

/// The part of a record that attempts to send the request see.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttemptRecord<'a>(&'a RequestRecord);

impl AttemptRecord<'_> {
    /// Whether the request came over HTTP/1.
    pub(crate) fn is_http1(self) -> bool {
        matches!(self.0.protocol, RequestProtocol::http1)
    }

    /// The request is sent to `upstream`.
    pub(crate) fn sent_to(self, upstream: SocketAddr, cold_start: bool) {
        if let Some(note) = &self.0.note {
            note.sent_to(upstream, cold_start);
        }
    }
}

/// The part of a record that a pod's response carries to its end.
#[derive(Debug)]
pub(crate) struct ResponseRecord(RequestRecord);

impl ResponseRecord {
    /// The response begins.
    pub(crate) fn begins(&mut self, status: u16) {
        self.0.status = status;
    }

    /// The connection changes its protocol.
    pub(crate) fn switches(&mut self, status: u16) {
        self.0.code = status;
    }

    /// `bytes` of a body were sent to the client.
    pub(crate) fn sent(&self, bytes: u64) {
        self.0.sent(bytes);
    }

    /// The response is complete.
    pub(crate) fn completed(&mut self) {
        self.0.code = self.0.status;
    }

    /// The response ends before it is complete.
    pub(crate) fn breaks_off(&mut self, failure: &Failure) {
        self.0.failed(failure);
        self.0.code = failure.status().as_u16();
    }
}
