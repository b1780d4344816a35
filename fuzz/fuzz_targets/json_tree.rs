//! Fuzzes the JSON parser: it is as strict as serde_json, and every position lies within the text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rouse_config::document::json::JsonText;
use rouse_config::document::{DocumentNode, Value};

fuzz_target!(|text: &str| {
    let mut json = JsonText::new(text);
    let Ok((raw, end)) = json.value_at(0) else {
        assert!(serde_json::from_str::<serde_json::Value>(text).is_err());
        return;
    };
    assert!(end <= text.len());
    if let Ok(node) = json.node(raw) {
        let value: serde_json::Value = serde_json::from_str(raw.get()).expect("serde_json agrees");
        same(&node, &value);
        let lines = text.lines().count().max(1);
        assert!(node.mark.line as usize <= lines);
    }
});

fn same(node: &DocumentNode, value: &serde_json::Value) {
    match (&node.value, value) {
        (Value::Null, serde_json::Value::Null) => {}
        (Value::Bool(a), serde_json::Value::Bool(b)) => assert_eq!(a, b),
        // serde_json keeps the sign of -0, which makes it a float.
        (Value::Integer(0), serde_json::Value::Number(b)) => assert_eq!(Some(0.0), b.as_f64()),
        (Value::Integer(a), serde_json::Value::Number(b)) => assert_eq!(Some(*a), b.as_i64()),
        (Value::Float(a), serde_json::Value::Number(b)) => assert_eq!(Some(*a), b.as_f64()),
        (Value::Text(a), serde_json::Value::String(b)) => assert_eq!(**a, **b),
        (Value::List(a), serde_json::Value::Array(b)) => {
            assert_eq!(a.len(), b.len());
            a.iter().zip(b).for_each(|(a, b)| same(a, b));
        }
        (Value::Map(a), serde_json::Value::Object(b)) => {
            assert_eq!(a.len(), b.len());
            a.iter().for_each(|entry| same(&entry.value, &b[&*entry.key]));
        }
        (a, b) => panic!("{a:?} is not {b:?}"),
    }
}
