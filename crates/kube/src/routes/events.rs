//! Kubernetes Events on routes, which `kubectl describe` shows, and the limit on their number.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rouse_core::budget::TokenBucket;
use rouse_core::time::{Clock, Moment};
use serde_json::{Value, json};

use crate::client::ObjectKind;
use crate::objects::route::RouteKey;
use crate::objects::time_text;

/// The least time between two events of the same reason on the same route.
const PAUSE: Duration = Duration::from_mins(1);
/// The burst of all events; one more is allowed every [`EVERY`].
const BURST: u32 = 25;
const EVERY: Duration = Duration::from_secs(2);
/// The most routes whose last event is remembered.
const MOST: usize = 4096;

/// Who writes Kubernetes Events.
#[derive(Clone)]
pub(crate) struct EventAuthor {
    /// The program: `rouse.dev/gateway`.
    pub(crate) component: &'static str,
    /// The name of its pod.
    pub(crate) instance: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) time_of_day: fn() -> SystemTime,
}

/// A Kubernetes Event on a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouteEvent {
    pub(crate) route: RouteKey,
    /// The route's kind at the API server.
    pub(crate) kind: ObjectKind,
    /// The object's UID, by which `kubectl` finds the event.
    pub(crate) uid: String,
    pub(crate) reason: EventReason,
    pub(crate) message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum EventReason {
    Woken,
    WakeFailed,
    ScaledUp,
    ScaledDown,
    ScaleFailed,
}

impl EventReason {
    fn as_str(self) -> &'static str {
        match self {
            EventReason::Woken => "Woken",
            EventReason::WakeFailed => "WakeFailed",
            EventReason::ScaledUp => "ScaledUp",
            EventReason::ScaledDown => "ScaledDown",
            EventReason::ScaleFailed => "ScaleFailed",
        }
    }

    fn severity(self) -> &'static str {
        match self {
            EventReason::Woken | EventReason::ScaledUp | EventReason::ScaledDown => "Normal",
            EventReason::WakeFailed | EventReason::ScaleFailed => "Warning",
        }
    }
}

/// Limits how many events are written.
#[derive(Debug)]
pub(crate) struct EventLimits {
    last: HashMap<(RouteKey, EventReason), Moment>,
    bucket: TokenBucket,
}

impl EventLimits {
    pub(crate) fn new(now: Moment) -> Self {
        Self { last: HashMap::new(), bucket: TokenBucket::every(EVERY, BURST, now) }
    }

    /// Whether one more event may be written. If so, counts it.
    pub(crate) fn may(&mut self, route: &RouteKey, reason: EventReason, now: Moment) -> bool {
        let key = (route.clone(), reason);
        if !self.bucket.has(now) || self.last.get(&key).is_some_and(|last| now.since(*last) < PAUSE) {
            return false;
        }
        if self.last.len() >= MOST {
            self.last.retain(|_, last| now.since(*last) < PAUSE);
        }
        if self.last.len() >= MOST {
            return false;
        }
        self.bucket.take();
        self.last.insert(key, now);
        true
    }
}

impl RouteEvent {
    /// The Event object for the API server.
    pub(crate) fn object(&self, author: &EventAuthor) -> Value {
        let now = time_text((author.time_of_day)());
        // Names of events must be unique: the API server generates the rest of the name.
        let prefix: String = self.route.name.chars().take(200).collect();
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "generateName": format!("{prefix}."), "namespace": &*self.route.namespace },
            "involvedObject": {
                "apiVersion": self.kind.api_version(),
                "kind": self.kind.name,
                "namespace": &*self.route.namespace,
                "name": &*self.route.name,
                "uid": self.uid,
            },
            "reason": self.reason.as_str(),
            "message": self.message.chars().take(1000).collect::<String>(),
            "type": self.reason.severity(),
            "source": { "component": "rouse" },
            "reportingComponent": author.component,
            "reportingInstance": author.instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::route::RouteKind;

    fn route(n: u32) -> RouteKey {
        RouteKey { namespace: "shop".into(), name: format!("r{n}").into(), kind: RouteKind::InterceptorRoute }
    }

    #[test]
    fn one_route_says_the_same_once_a_minute() {
        let mut bound = EventLimits::new(Moment::ZERO);
        let said =
            |bound: &mut EventLimits, reason, second| bound.may(&route(1), reason, Moment::from_secs(second));
        assert!(said(&mut bound, EventReason::Woken, 0) && said(&mut bound, EventReason::WakeFailed, 0));
        assert!(!said(&mut bound, EventReason::Woken, 59));
        assert!(said(&mut bound, EventReason::Woken, 60));
    }

    #[test]
    fn many_routes_together_are_bounded_and_recover() {
        let mut bound = EventLimits::new(Moment::ZERO);
        let burst =
            (0..1000).filter(|n| bound.may(&route(*n), EventReason::Woken, Moment::from_secs(1))).count();
        assert_eq!(burst, 25);
        let later = (0..1000)
            .filter(|n| bound.may(&route(1000 + n), EventReason::Woken, Moment::from_secs(11)))
            .count();
        assert_eq!(later, 5, "one every two seconds");
        for second in 12..10_000 {
            bound.may(&route(u32::try_from(second).unwrap()), EventReason::Woken, Moment::from_secs(second));
        }
        assert!(bound.last.len() <= MOST);
    }
}
