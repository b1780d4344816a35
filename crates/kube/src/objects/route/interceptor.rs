//! Reads a `http.keda.sh/v1beta1` `InterceptorRoute` into a `RouteSpec`.

use super::shared_fields::{
    created, header_matches, header_name, header_value, host, path, salvaged, scaling_metric, target,
};
use super::{
    BodySpec, ColdStartSpec, LONGEST_BODY, NoWakeSpec, ResponseSpec, RouteKey, RouteKind, RouteSpec,
    RuleSpec, ScalingSpec, StaticMode, StaticSpec, TimeoutSpec,
};
use crate::objects::Meta;
use crate::objects::route::field::Field;

pub(super) fn read(meta: &Meta, spec: &Field<'_>) -> Option<RouteSpec> {
    let at = spec.get("target");
    let target = if at.is_set() { at.object() } else { at.missing("an object with service and port") };
    let target = target.and_then(|at| target_of(&at, meta));
    let timeouts = spec.get("timeouts");
    let timeouts = TimeoutSpec {
        readiness: timeouts.get("readiness").duration(),
        request: timeouts.get("request").duration(),
        response_header: timeouts.get("responseHeader").duration(),
    };
    let (concurrency, rate) = scaling_metric(&spec.get("scalingMetric"));
    let rules = rules(&spec.get("rules"));
    let cold_start = spec.get("coldStart").object().map(|at| cold_start(&at, meta)).unwrap_or_default();
    let static_routes = spec.get("staticRoutes").list().iter().filter_map(static_route).collect();
    Some(RouteSpec {
        key: RouteKey::new(RouteKind::InterceptorRoute, meta),
        created: created(meta),
        rules,
        target: target?,
        timeouts,
        cold_start,
        static_routes,
        scaling: ScalingSpec { concurrency, rate, ..ScalingSpec::default() },
        direct: None,
        probing: None,
        verify_upstream: true,
        no_wake: NoWakeSpec::default(),
    })
}

fn target_of(at: &Field<'_>, meta: &Meta) -> Option<super::TargetSpec> {
    target(at, "service", meta.namespace())
}

/// The readable rules of an invalid route.
pub(super) fn salvage(spec: &Field<'_>) -> Vec<RuleSpec> {
    let (at, statics) = (spec.get("rules"), spec.get("staticRoutes"));
    let readable = |at: &Field<'_>| -> Vec<RuleSpec> {
        at.list().iter().filter_map(Field::object).flat_map(|at| salvaged(&at, "paths", rule)).collect()
    };
    let mut all = if at.is_blank() { vec![RuleSpec::default()] } else { readable(&at) };
    // A static rule without hosts applies to the hosts of the route.
    let fixed = statics.list().into_iter().flat_map(|at| readable(&at.get("rules")));
    all.extend(fixed.filter(|rule| !rule.hosts.is_empty()));
    all
}

fn rules(at: &Field<'_>) -> Vec<RuleSpec> {
    at.list().iter().filter_map(Field::object).map(|at| rule(&at)).collect()
}

fn rule(at: &Field<'_>) -> RuleSpec {
    RuleSpec {
        hosts: at.get("hosts").list().iter().filter_map(host).collect(),
        paths: at.get("paths").list().iter().filter_map(path_match).collect(),
        headers: header_matches(&at.get("headers")),
    }
}

fn path_match(at: &Field<'_>) -> Option<String> {
    let value = at.get("value");
    if value.is_set() { path(&value) } else { value.missing("a path") }
}

fn cold_start(at: &Field<'_>, meta: &Meta) -> ColdStartSpec {
    let fallback = at.get("fallback").object().and_then(|at| {
        let service = at.get("service");
        let service =
            if service.is_set() { service.object() } else { service.missing("an object with name and port") };
        target(&service?, "name", meta.namespace())
    });
    let answer = |name: &str, status| {
        let at = at.get(name).object()?;
        response(&at.get("response"), status)
    };
    ColdStartSpec {
        fallback,
        placeholder: answer("placeholder", 503),
        max_pending: at.get("maxPendingRequests").number(0, u32::MAX),
        overflow: answer("overflow", 503),
    }
}

fn static_route(at: &Field<'_>) -> Option<StaticSpec> {
    let at = at.object()?;
    let mode = at.get("responseMode");
    let mode = match mode.text() {
        None | Some("WhenUnavailable") => StaticMode::WhenUnavailable,
        Some("Always") => StaticMode::Always,
        Some(other) => {
            mode.fault(format_args!("is {other:?}: expected WhenUnavailable or Always"));
            return None;
        }
    };
    Some(StaticSpec { rules: rules(&at.get("rules")), response: response(&at.get("response"), 200)?, mode })
}

fn response(at: &Field<'_>, status: u16) -> Option<ResponseSpec> {
    if !at.is_set() {
        return at.missing("an object with statusCode, headers and body");
    }
    let at = at.object()?;
    let code = at.get("statusCode").number(100, 599).and_then(|code| u16::try_from(code).ok());
    let code = code.unwrap_or(status);
    if code < 200 {
        at.get("statusCode").fault("is less than 200: expected a final status, from 200 to 599");
    }
    let headers = at.get("headers");
    let pair = |(name, value)| Some((header_name(&headers, name)?, header_value(&headers, value)?));
    Some(ResponseSpec {
        status: code,
        headers: headers.texts().into_iter().filter_map(pair).collect(),
        body: body(&at)?,
    })
}

fn body(at: &Field<'_>) -> Option<BodySpec> {
    let (text, map) = (at.get("body"), at.get("bodyFromConfigMap"));
    if text.is_set() && map.is_set() {
        at.fault("has both body and bodyFromConfigMap: expected one of them");
        return None;
    }
    if let Some(map) = map.object() {
        let name = map.get("name");
        let found =
            if name.is_set() { name.word("a ConfigMap's name") } else { name.missing("a ConfigMap's name") };
        // The name becomes part of the path of a request to the API server.
        let found = found.filter(|found| {
            let fits = crate::objects::workload::is_object_name(found);
            if !fits {
                name.fault(format_args!("is {found:?}: expected a ConfigMap's name"));
            }
            fits
        });
        let key = map.get("key").word("an entry of the ConfigMap").map(Into::into);
        return Some(BodySpec::ConfigMap { name: found?.into(), key });
    }
    let words = text.text().unwrap_or_default();
    if words.len() > LONGEST_BODY {
        text.fault(format_args!("has {} bytes: expected at most {LONGEST_BODY}", words.len()));
        return None;
    }
    Some(BodySpec::Text(words.into()))
}
