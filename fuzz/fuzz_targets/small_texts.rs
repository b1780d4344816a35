//! Fuzzes the parsers of short texts: service names, boot IDs, selectors, hosts, paths, networks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rouse_core::endpoint::ServiceId;
use rouse_core::merge::BootId;
use rouse_core::slices::MaxEndpoints;
use rouse_kube::objects::slices::parse_selector;
use rouse_proxy::request::TrustedProxies;
use rouse_proxy::routing::{HostPattern, PathPrefix};

fuzz_target!(|text: &str| {
    if let Ok(id) = text.parse::<ServiceId>() {
        assert_eq!(id.to_string(), text);
    }
    if let Ok(selector) = parse_selector(text) {
        let again: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(parse_selector(&again.join(",")), Ok(selector));
    }
    if let Ok(max) = text.parse::<MaxEndpoints>() {
        assert!((1..=1000).contains(&max.get()));
    }
    if let Ok(boot) = text.parse::<BootId>() {
        assert_eq!(boot.to_string().parse(), Ok(boot));
    }
    if let Ok(host) = text.parse::<HostPattern>() {
        assert_eq!(host.to_string().parse(), Ok(host));
    }
    if let Ok(path) = text.parse::<PathPrefix>() {
        assert_eq!(path.to_string().parse(), Ok(path));
    }
    // It parses or fails, without a panic.
    drop(text.parse::<TrustedProxies>());
});
