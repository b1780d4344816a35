//! The small texts that name things: a service, a selector, a number of endpoints.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rouse_core::endpoint::ServiceId;
use rouse_core::slices::MaxEndpoints;
use rouse_kube::objects::slices::parse_selector;

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
});
