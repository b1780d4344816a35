//! Our own annotations on a route: what KEDA's objects have no field for.

use std::sync::Arc;

use super::{DirectMode, Probing, QuietSpec, RouteSpec};
use crate::objects::Meta;
use crate::route::field::{EXPECTED_DURATION, Faults, duration};
use crate::scale::Workload;
use crate::service::{ANNOTATIONS, odd_annotation};

/// How many paths, methods and user agents a route may call quiet; each is looked at with every request.
const QUIET: usize = 32;

/// Reads all of them, whatever else is wrong, and adds them to the spec if there is one.
pub(super) fn apply(meta: &Meta, faults: &Faults, spec: Option<&mut RouteSpec>) {
    let annotations = Annotations { meta, faults };
    let whole = "a whole number";
    let min = annotations.parse("min", whole, |text| text.parse().ok());
    let max =
        annotations.parse("max", "a whole number from 1", |text| text.parse().ok().filter(|max| *max > 0));
    let idle_after = annotations.parse("idle-after", EXPECTED_DURATION, duration);
    let limit = annotations.parse("concurrency-limit", whole, |text| text.parse().ok());
    let direct = annotations.parse("direct-pod-routing", DirectMode::EXPECTED, DirectMode::parse);
    let probing = annotations.parse("probe", Probing::EXPECTED, Probing::parse);
    let target = annotations.parse("scale-target", Workload::EXPECTED, Workload::parse);
    let verify = annotations.parse("upstream-verify", "true or false", |text| text.parse().ok());
    let quiet = annotations.quiet();
    let Some(spec) = spec else { return };
    let scaling = &mut spec.scaling;
    scaling.min = min.unwrap_or(scaling.min);
    scaling.max = max.or(scaling.max);
    scaling.idle_after = idle_after.or(scaling.idle_after);
    scaling.concurrency_limit = limit.filter(|limit| *limit > 0).or(scaling.concurrency_limit);
    scaling.target = scaling.target.take().or(target);
    (spec.direct, spec.probing) = (direct, probing);
    (spec.verify_upstream, spec.quiet) = (verify.unwrap_or(true), quiet);
    if let Some(max) = scaling.max.filter(|max| scaling.min > *max) {
        let words = format!("min ({}) is greater than max ({max})", scaling.min);
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
            self.faults.borrow_mut().push(odd_annotation(&key, text, expected));
        }
        parsed
    }

    fn quiet(&self) -> QuietSpec {
        let path = |text: &str| {
            let fits = text.starts_with('/') && !text.contains(['?', '#']);
            fits.then(|| text.into())
        };
        let method = |text: &str| {
            let method = http::Method::from_bytes(text.to_ascii_uppercase().as_bytes()).ok()?;
            Some(method.as_str().into())
        };
        let agent = |text: &str| Some(text.to_lowercase().into());
        QuietSpec {
            paths: self.list("no-wake-paths", "paths that begin with a slash and have no ? and no #", path),
            methods: self.list("no-wake-methods", "methods like OPTIONS", method),
            agents: self.list("no-wake-user-agents", "parts of user agents", agent),
        }
    }

    /// A list with commas, of 1 to [`QUIET`] entries.
    fn list(&self, name: &str, what: &str, parse: impl Fn(&str) -> Option<Arc<str>>) -> Vec<Arc<str>> {
        let expected = format!("1 to {QUIET} {what}, with commas in between");
        let all = self.parse(name, &expected, |text| {
            let parts = text.split(',').map(str::trim);
            // One that is empty would fit every request.
            let all: Option<Vec<Arc<str>>> =
                parts.map(|part| if part.is_empty() { None } else { parse(part) }).collect();
            all.filter(|all| all.len() <= QUIET)
        });
        all.unwrap_or_default()
    }
}

impl DirectMode {
    const EXPECTED: &str = "disabled, cold-start-only or always";

    fn parse(text: &str) -> Option<Self> {
        match text {
            "disabled" => Some(Self::Disabled),
            "cold-start-only" => Some(Self::ColdStartOnly),
            "always" => Some(Self::Always),
            _ => None,
        }
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
