//! Writes YAML in the block style that kubectl prints.

use std::io::{self, Write};

use serde_json::Value;

/// Writes `value` as the elements of a list, or as one block, at `indent` spaces.
pub fn yaml(out: &mut dyn Write, value: &Value, indent: usize) -> io::Result<()> {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                write!(out, "{:indent$}{}:", "", text(key))?;
                // kubectl puts a list's dashes right under its key.
                let deeper = if value.is_array() { indent } else { indent + 2 };
                beside(out, value, deeper)?;
            }
            Ok(())
        }
        Value::Array(list) if !list.is_empty() => list.iter().try_for_each(|value| item(out, value, indent)),
        scalar => writeln!(out, "{:indent$}{}", "", flat(scalar)),
    }
}

/// Writes `value` as one element of a list whose dashes stand at `indent`.
pub fn item(out: &mut dyn Write, value: &Value, indent: usize) -> io::Result<()> {
    let mut block = Vec::new();
    yaml(&mut block, value, indent + 2)?;
    // The dash takes the place of the first line's own indent.
    write!(out, "{:indent$}- ", "")?;
    out.write_all(block.get(indent + 2..).unwrap_or_default())
}

/// What follows a key: a scalar beside it, anything else on the lines below.
fn beside(out: &mut dyn Write, value: &Value, indent: usize) -> io::Result<()> {
    let nested = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    };
    if nested {
        writeln!(out)?;
        yaml(out, value, indent)
    } else {
        writeln!(out, " {}", flat(value))
    }
}

/// Anything that fits on one line.
fn flat(value: &Value) -> String {
    match value {
        Value::String(string) => text(string),
        other => other.to_string(),
    }
}

/// A string, in quotes if a YAML reader could read it as another type. JSON's quoting is valid YAML.
fn text(string: &str) -> String {
    let plain = string.starts_with(|c: char| c.is_ascii_alphabetic())
        && string.chars().all(|c| c.is_ascii_alphanumeric() || "._/-".contains(c))
        && !is_a_word_of_yaml(string);
    if plain { string.to_owned() } else { Value::from(string).to_string() }
}

/// True for words that some version of YAML does not read as text.
fn is_a_word_of_yaml(string: &str) -> bool {
    const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    WORDS.iter().any(|word| string.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::yaml::Reader;
    use super::super::{DocumentNode, Value as Read};
    use super::*;

    fn written(value: &Value) -> String {
        let mut out = Vec::new();
        yaml(&mut out, value, 0).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn back(text: &str) -> Value {
        let mut reader = Reader::new(text, 1);
        assert!(reader.next_document().unwrap());
        plain(&reader.node().unwrap())
    }

    fn plain(node: &DocumentNode) -> Value {
        match &node.value {
            Read::Null => Value::Null,
            Read::Bool(value) => (*value).into(),
            Read::Integer(value) => (*value).into(),
            Read::Float(value) => (*value).into(),
            Read::Text(text) => (**text).into(),
            Read::List(list) => list.iter().map(plain).collect(),
            Read::Map(entries) => entries.iter().map(|e| (e.key.to_string(), plain(&e.value))).collect(),
        }
    }

    #[test]
    fn it_looks_like_kubectl() {
        let value = json!({
            "kind": "List",
            "empty": [], "none": {},
            "items": [{"name": "a", "ports": [{"port": 80, "name": ""}]}, ["x", "yes", "1.2.3.4"]],
        });
        let expected = "empty: []\nitems:\n- name: a\n  ports:\n  - name: \"\"\n    port: 80\n\
            - - x\n  - \"yes\"\n  - \"1.2.3.4\"\nkind: List\nnone: {}\n";
        assert_eq!(written(&value), expected);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[-:#a-z ~.0-9!&*|>'\"\\[\\]{},?\\n\\t]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_is_read_back_as_it_was_written(value in any_value()) {
            let text = written(&value);
            prop_assert_eq!(back(&text), value, "{}", text);
        }
    }
}
