//! The `rouse.dev/` annotations of a route, for settings that KEDA's objects have no field for.

use std::sync::Arc;

use rouse_core::routing_mode::RoutingMode;
use rouse_core::scale::{BadSchedule, COLD_START_COSTS, DEFAULT_COLD_START_COST, IdlePolicy, Schedule};

use super::{NoWakeSpec, Probing, RouteSpec};
use crate::objects::Meta;
use crate::objects::route::field::{EXPECTED_DURATION, Faults, duration};
use crate::objects::service_summary::{ANNOTATIONS, invalid_annotation};
use crate::objects::workload::Workload;

const EXPECTED_MODE: &str = "disabled, cold-start-only or always";
/// How many no-wake paths, methods and user agents a route may have: each request is compared with all of them.
const MAX_NO_WAKE: usize = 32;
/// What a cold start is worth.
const COST: &str = "cold-start-cost";
const EXPECTED_COST: &str = "a duration like 90s or 10m, from 1s to 720h";
/// The longest text about one schedule.
const LONGEST_FAULT: usize = 500;

/// Reads all annotations and adds them to the spec if there is one. Without a spec, only their faults are collected.
pub(super) fn apply(meta: &Meta, faults: &Faults, spec: Option<&mut RouteSpec>) {
    let annotations = Annotations { meta, faults };
    let whole = "a whole number";
    let min = annotations.parse("min", whole, |text| text.parse().ok());
    let max =
        annotations.parse("max", "a whole number from 1", |text| text.parse().ok().filter(|max| *max > 0));
    let idle_after = annotations.parse("idle-after", EXPECTED_DURATION, duration);
    let limit = annotations.parse("concurrency-limit", whole, |text| text.parse().ok());
    let direct = annotations.parse("direct-pod-routing", EXPECTED_MODE, RoutingMode::from_word);
    let probing = annotations.parse("probe", Probing::EXPECTED, Probing::parse);
    let target = annotations.parse("scale-target", Workload::EXPECTED, Workload::parse);
    let autoscale = annotations.parse("autoscale", "on or off", on_or_off);
    let idle = annotations.idle();
    let schedule = annotations.schedule();
    let verify = annotations.parse("upstream-verify", "true or false", |text| text.parse().ok());
    let no_wake = annotations.no_wake();
    let Some(spec) = spec else { return };
    let scaling = &mut spec.scaling;
    scaling.min = min.unwrap_or(scaling.min);
    scaling.max = max.or(scaling.max);
    scaling.idle_after = idle_after.or(scaling.idle_after);
    scaling.concurrency_limit = limit.filter(|limit| *limit > 0).or(scaling.concurrency_limit);
    scaling.target = scaling.target.take().or(target);
    (scaling.autoscale, scaling.idle) = (autoscale, idle);
    scaling.schedule = schedule.unwrap_or_default();
    (spec.direct, spec.probing) = (direct, probing);
    (spec.verify_upstream, spec.no_wake) = (verify.unwrap_or(true), no_wake);
    if let Some(max) = scaling.max.filter(|max| scaling.min > *max) {
        let words = format!("min ({}) is greater than max ({max})", scaling.min);
        faults.borrow_mut().push(words);
    }
    let most = scaling.schedule.most();
    if let Some(max) = scaling.max.filter(|max| most > *max) {
        let words = format!("annotation {ANNOTATIONS}schedule asks for {most} pods, more than max ({max})");
        faults.borrow_mut().push(words);
    }
}

struct Annotations<'a> {
    meta: &'a Meta,
    faults: &'a Faults,
}

impl Annotations<'_> {
    fn parse<T>(&self, name: &str, expected: &str, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let key = format!("{ANNOTATIONS}{name}");
        let text = self.meta.annotations.get(&key)?;
        let parsed = parse(text);
        if parsed.is_none() {
            self.faults.borrow_mut().push(invalid_annotation(&key, text, expected));
        }
        parsed
    }

    /// `None`: neither fixed nor learned is asked for.
    fn idle(&self) -> Option<IdlePolicy> {
        let key = format!("{ANNOTATIONS}{COST}");
        let cost = self
            .parse(COST, EXPECTED_COST, |text| duration(text).filter(|cost| COLD_START_COSTS.contains(cost)));
        let learned = self.parse("idle", "fixed or learned", |text| match text {
            "fixed" => Some(false),
            "learned" => Some(true),
            _ => None,
        });
        // While `idle` itself is wrong, that is said, and not this.
        let is_fixed =
            learned == Some(false) || !self.meta.annotations.contains_key(&format!("{ANNOTATIONS}idle"));
        if is_fixed && self.meta.annotations.contains_key(&key) {
            let words = format!("annotation {key} has a meaning only with {ANNOTATIONS}idle: learned");
            self.faults.borrow_mut().push(words);
        }
        let cold_start_cost = cost.unwrap_or(DEFAULT_COLD_START_COST);
        Some(if learned? { IdlePolicy::Learned { cold_start_cost } } else { IdlePolicy::Fixed })
    }

    fn schedule(&self) -> Option<Schedule> {
        let key = format!("{ANNOTATIONS}schedule");
        let parsed = self.meta.annotations.get(&key)?.parse::<Schedule>();
        // What is wrong is in the middle of a long text, so the text says more than a list of what is allowed.
        let fault = |bad: &BadSchedule| {
            self.faults.borrow_mut().push(format!("annotation {key}: {}", shortened(bad)));
        };
        parsed.inspect_err(fault).ok()
    }

    fn no_wake(&self) -> NoWakeSpec {
        let path = |text: &str| {
            let fits = text.starts_with('/') && !text.contains(['?', '#']);
            fits.then(|| text.into())
        };
        let method = |text: &str| {
            let method = http::Method::from_bytes(text.to_ascii_uppercase().as_bytes()).ok()?;
            Some(method.as_str().into())
        };
        let agent = |text: &str| Some(text.to_lowercase().into());
        NoWakeSpec {
            paths: self.list("no-wake-paths", "paths that begin with a slash and have no ? and no #", path),
            methods: self.list("no-wake-methods", "methods like OPTIONS", method),
            agents: self.list("no-wake-user-agents", "parts of user agents", agent),
        }
    }

    /// A list with commas, of 1 to [`MAX_NO_WAKE`] entries.
    fn list(&self, name: &str, what: &str, parse: impl Fn(&str) -> Option<Arc<str>>) -> Vec<Arc<str>> {
        let expected = format!("1 to {MAX_NO_WAKE} {what}, separated by commas");
        let all = self.parse(name, &expected, |text| {
            let parts = text.split(',').map(str::trim);
            // An empty entry would match every request.
            let all: Option<Vec<Arc<str>>> =
                parts.map(|part| if part.is_empty() { None } else { parse(part) }).collect();
            all.filter(|all| all.len() <= MAX_NO_WAKE)
        });
        all.unwrap_or_default()
    }
}

/// The error, but no more of the owner's text than fits into a status.
fn shortened(bad: &BadSchedule) -> String {
    let mut text = bad.to_string();
    text.truncate(text.floor_char_boundary(LONGEST_FAULT));
    text
}

/// YAML reads a bare `on` as `true`, but the API server accepts only strings as annotations.
fn on_or_off(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

impl Probing {
    const EXPECTED: &str = "disabled, no-tcp or enabled";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "disabled" => Some(Self::Disabled),
            "no-tcp" => Some(Self::NoTcp),
            "enabled" => Some(Self::Enabled),
            _ => None,
        }
    }
}
