//! Converts between JSON values and [`DocumentNode`]s. A tree that is written as JSON keeps the order of its keys.

use serde::ser::{Serialize, Serializer};
use serde_json::Value as Json;

use super::{DocumentNode, MapEntry, Mark, Value};

impl Serialize for DocumentNode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.value {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Integer(value) => serializer.serialize_i64(*value),
            Value::Float(value) => serializer.serialize_f64(*value),
            Value::Text(text) => serializer.serialize_str(text),
            Value::List(list) => serializer.collect_seq(list),
            Value::Map(entries) => {
                serializer.collect_map(entries.iter().map(|entry| (&*entry.key, &entry.value)))
            }
        }
    }
}

impl From<&Json> for DocumentNode {
    fn from(json: &Json) -> Self {
        let value = match json {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => match number.as_i64() {
                Some(integer) => Value::Integer(integer),
                None => Value::Float(number.as_f64().unwrap_or_default()),
            },
            Json::String(text) => Value::Text(text.as_str().into()),
            Json::Array(list) => Value::List(list.iter().map(Self::from).collect()),
            Json::Object(map) => Value::Map(
                map.iter()
                    .map(|(key, value)| MapEntry {
                        mark: Mark::START,
                        key: key.as_str().into(),
                        value: value.into(),
                    })
                    .collect(),
            ),
        };
        Self { mark: Mark::START, value }
    }
}
