//! Writes the condition `Autoscaled` of routes when it changes, at most once in a while for each route.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use rouse_core::time::Moment;

use super::conditions::{DesiredCondition, said};
use super::state::AutoscaleState;
use super::{AutoscaleController, TargetKey};
use crate::objects::route::RouteKey;
use crate::objects::time_text;
use crate::routes::status::CurrentStatus;
use crate::routes::{EventReason, RouteEvent, StatusWriter};

/// The least time between two looks at the routes that may have a new condition.
const ROUND: Duration = Duration::from_secs(1);
/// The least time between two changes of the condition of one route.
const PAUSE: Duration = Duration::from_secs(30);
/// When statuses that could not be written are tried again.
const RETRY: Duration = Duration::from_secs(30);

/// What was said last, and when.
#[derive(Default)]
pub(super) struct StatusThrottle {
    said: HashMap<RouteKey, (Moment, DesiredCondition)>,
    next: Option<Moment>,
    retry: Option<Moment>,
}

impl StatusThrottle {
    /// A status that could not be written is due again.
    pub(super) fn again(&mut self) {
        self.next = None;
    }

    /// When to look again.
    pub(super) fn next_due(&self, state: &AutoscaleState) -> Option<Moment> {
        let touched = (!state.touched.is_empty()).then_some(self.next).flatten();
        touched.into_iter().chain(self.retry).min()
    }

    /// Has the conditions written that are new.
    pub(super) fn put(
        &mut self,
        state: &mut AutoscaleState,
        writer: &StatusWriter,
        now: Moment,
        time_of_day: SystemTime,
    ) {
        if self.retry.is_some_and(|retry| retry <= now) {
            self.retry = None;
            writer.retry();
            state.touched.extend(self.said.keys().cloned());
        }
        if self.next.is_some_and(|next| now < next) {
            return;
        }
        self.next = Some(now + ROUND);
        let text = time_text(time_of_day);
        for key in std::mem::take(&mut state.touched) {
            if !self.put_one(state, writer, &key, now, &text) {
                state.touched.insert(key);
            }
        }
        if self.retry.is_none() && writer.has_unwritten() {
            self.retry = Some(now + RETRY);
        }
    }

    /// Returns false if the route is to be looked at again.
    fn put_one(
        &mut self,
        state: &AutoscaleState,
        writer: &StatusWriter,
        key: &RouteKey,
        now: Moment,
        text: &str,
    ) -> bool {
        let Some(entry) = state.store.get(key) else {
            self.said.remove(key);
            writer.retain(|route| route != key);
            return true;
        };
        let said = said(state, key, now);
        match &said {
            DesiredCondition::Unchanged => return true,
            DesiredCondition::Recheck => return false,
            DesiredCondition::Absent | DesiredCondition::Condition(_) => {}
        }
        let before = self.said.get(key);
        if let Some((when, before)) = before
            && *before != said
            && now < *when + PAUSE
        {
            return false;
        }
        let desired = match &said {
            DesiredCondition::Condition(condition) => vec![condition.clone()],
            _ => Vec::new(),
        };
        if before.is_none_or(|(_, before)| *before != said) {
            self.said.insert(key.clone(), (now, said));
        }
        let object = CurrentStatus {
            uid: &entry.uid,
            generation: entry.generation,
            version: &entry.version,
            conditions: &entry.conditions,
        };
        writer.put(key, key.kind.object_kind(), object, desired, text);
        true
    }
}

impl AutoscaleController {
    /// Writes a Kubernetes Event on the oldest route of a target.
    pub(super) fn put_event(&self, key: &TargetKey, reason: EventReason, message: String) {
        let state = self.state();
        let Some(route) = state.targets.get(key).and_then(|target| target.spec.routes.first()) else {
            return;
        };
        let Some(entry) = state.store.get(&route.key) else { return };
        let (kind, uid) = (route.key.kind.object_kind(), entry.uid.clone());
        self.kube_events.put(RouteEvent { route: route.key.clone(), kind, uid, reason, message });
    }
}
