//! Writes YAML in the block style that kubectl prints.

use std::io::{self, Write};

use serde_json::Value as Json;

use super::{DocumentNode, Value};

/// Writes `value` as the elements of a list, or as one block, at `indent` spaces.
pub fn yaml(out: &mut dyn Write, value: &Json, indent: usize) -> io::Result<()> {
    node(out, &value.into(), indent)
}

/// Writes `value` as one element of a list whose dashes stand at `indent`.
pub fn item(out: &mut dyn Write, value: &Json, indent: usize) -> io::Result<()> {
    element(out, &value.into(), indent)
}

/// Writes a tree like [`yaml`], with its keys in the order that they have.
pub fn node(out: &mut dyn Write, node: &DocumentNode, indent: usize) -> io::Result<()> {
    match &node.value {
        Value::Map(map) if !map.is_empty() => {
            for entry in map {
                write!(out, "{:indent$}{}:", "", text(&entry.key))?;
                // kubectl puts a list's dashes right under its key.
                let is_list = matches!(entry.value.value, Value::List(_));
                beside(out, &entry.value, if is_list { indent } else { indent + 2 })?;
            }
            Ok(())
        }
        Value::List(list) if !list.is_empty() => list.iter().try_for_each(|it| element(out, it, indent)),
        scalar => writeln!(out, "{:indent$}{}", "", flat(scalar)),
    }
}

fn element(out: &mut dyn Write, value: &DocumentNode, indent: usize) -> io::Result<()> {
    let mut block = Vec::new();
    node(&mut block, value, indent + 2)?;
    // The dash takes the place of the first line's own indent.
    write!(out, "{:indent$}- ", "")?;
    out.write_all(block.get(indent + 2..).unwrap_or_default())
}

/// What follows a key: a scalar beside it, anything else on the lines below.
fn beside(out: &mut dyn Write, value: &DocumentNode, indent: usize) -> io::Result<()> {
    let nested = match &value.value {
        Value::Map(map) => !map.is_empty(),
        Value::List(list) => !list.is_empty(),
        _ => false,
    };
    if nested {
        writeln!(out)?;
        node(out, value, indent)
    } else {
        writeln!(out, " {}", flat(&value.value))
    }
}

/// Anything that fits on one line.
fn flat(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Integer(value) => value.to_string(),
        Value::Float(value) => float(*value),
        Value::Text(string) => text(string),
        // Empty: others are written as blocks.
        Value::List(_) => "[]".to_owned(),
        Value::Map(_) => "{}".to_owned(),
    }
}

fn float(value: f64) -> String {
    match serde_json::Number::from_f64(value) {
        Some(number) => number.to_string(),
        None if value.is_nan() => ".nan".to_owned(),
        None if value.is_sign_negative() => "-.inf".to_owned(),
        None => ".inf".to_owned(),
    }
}

/// A string, in quotes if a YAML reader could read it as another type. JSON's quoting is valid YAML.
fn text(string: &str) -> String {
    let plain = string.starts_with(|c: char| c.is_ascii_alphabetic())
        && string.chars().all(|c| c.is_ascii_alphanumeric() || "._/-".contains(c))
        && !is_a_word_of_yaml(string);
    if plain { string.to_owned() } else { Json::from(string).to_string() }
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
    use super::*;

    fn written(value: &Json) -> String {
        let mut out = Vec::new();
        yaml(&mut out, value, 0).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn back(text: &str) -> DocumentNode {
        let mut reader = Reader::new(text, 1);
        assert!(reader.next_document().unwrap());
        reader.node().unwrap()
    }

    /// The node as JSON, without its places.
    fn plain(node: &DocumentNode) -> Json {
        serde_json::to_value(node).unwrap()
    }

    #[test]
    fn numbers_that_are_not_whole_are_numbers_again() {
        for text in ["0.5", "-1.25", "1e300", ".inf", "-.inf", ".nan"] {
            let tree = back(&format!("a: {text}\n"));
            let mut out = Vec::new();
            node(&mut out, &tree, 0).unwrap();
            let again = back(&String::from_utf8(out).unwrap());
            assert_eq!(format!("{:?}", again.get("a")), format!("{:?}", tree.get("a")), "{text}");
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

    fn any_value() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            any::<String>().prop_map(Json::from),
            "[-:#a-z ~.0-9!&*|>'\"\\[\\]{},?\\n\\t]{0,12}".prop_map(Json::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Json::from),
                prop::collection::btree_map(any::<String>(), inner, 0..5)
                    .prop_map(|map| Json::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_is_read_back_as_it_was_written(value in any_value()) {
            let text = written(&value);
            prop_assert_eq!(plain(&back(&text)), value, "{}", text);
        }

        /// Also as JSON, and with keys that are not sorted.
        #[test]
        fn a_tree_keeps_the_order_of_its_keys(keys in prop::collection::hash_set("[a-z]{1,4}", 1..8)) {
            let text = keys.iter().fold(String::new(), |text, key| text + key + "-x: 1\n");
            let tree = back(&text);
            let mut out = Vec::new();
            node(&mut out, &tree, 0).unwrap();
            prop_assert_eq!(String::from_utf8(out).unwrap(), text);
            let json = serde_json::to_string(&tree).unwrap();
            let places: Vec<_> = keys.iter().map(|key| json.find(&format!("\"{key}-x\""))).collect();
            prop_assert!(places.is_sorted() && places[0].is_some(), "{}", json);
        }
    }
}
