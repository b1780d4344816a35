//! Deserializes a [`DocumentNode`] into typed values by serde, with errors that name line, column and field.
//!
//! Stricter than serde's default: a list is never read as an object, nor a number as text.

use std::fmt::Display;
use std::iter::Enumerate;
use std::vec;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, EnumAccess, Expected, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::{DocumentError, DocumentNode, MapEntry, Mark, Value};

/// Reads `node` as a `T`. Consumes the tree while it builds the value, so a large one is not in memory twice.
pub fn from_node<T: DeserializeOwned>(node: DocumentNode) -> Result<T, DocumentError> {
    let mark = node.mark;
    T::deserialize(NodeDeserializer(node)).map_err(|misfit| misfit.at(mark))
}

/// An error that may not know its place yet. Boxed: results are passed by value at every field.
#[derive(Debug)]
struct Misfit(Box<(Option<Mark>, DocumentError)>);

impl Misfit {
    fn new(problem: impl Into<String>) -> Self {
        Self(Box::new((None, DocumentError::new(Mark::START, problem))))
    }

    /// Sets the place if there is none: the innermost place is set first, and counts.
    fn placed(mut self, mark: Mark) -> Self {
        self.0.0.get_or_insert(mark);
        self
    }

    fn at(self, fallback: Mark) -> DocumentError {
        let (mark, fault) = *self.0;
        DocumentError { mark: mark.unwrap_or(fallback), ..fault }
    }

    fn map(mut self, change: impl FnOnce(DocumentError) -> DocumentError) -> Self {
        self.0.1 = change(self.0.1);
        self
    }
}

impl Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.1.fmt(f)
    }
}

impl std::error::Error for Misfit {}

impl de::Error for Misfit {
    fn custom<T: Display>(problem: T) -> Self {
        Self::new(problem.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("expected {expected}, found {found}"))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(found: &str, expected: &'static [&'static str]) -> Self {
        Self::new(format!("expected one of {}, found {found:?}", expected.join(", ")))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new("missing").map(|fault| fault.under(field))
    }
}

struct NodeDeserializer(DocumentNode);

impl NodeDeserializer {
    fn misfit(&self, expected: &dyn Expected) -> Misfit {
        let hint = match (&self.0.value, expected.to_string().as_str()) {
            (Value::Integer(_) | Value::Float(_) | Value::Bool(_), "a string") => " (put it in quotes)",
            _ => "",
        };
        Misfit::new(format!("expected {expected}, found {}{hint}", self.0.value)).placed(self.0.mark)
    }
}

impl<'n> de::Deserializer<'n> for NodeDeserializer {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Misfit> {
        let mark = self.0.mark;
        match self.0.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(value),
            Value::Integer(value) => visitor.visit_i64(value),
            Value::Float(value) => visitor.visit_f64(value),
            Value::Text(text) => visitor.visit_string(text.into()),
            Value::List(list) => visitor.visit_seq(Elements { list: list.into_iter().enumerate() }),
            Value::Map(entries) => visitor.visit_map(Members { entries: entries.into_iter(), current: None }),
        }
        .map_err(|misfit: Misfit| misfit.placed(mark))
    }

    fn deserialize_option<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    // Does not walk an unread part: it may be most of the object.
    fn deserialize_ignored_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_unit()
    }

    // Derived structs also deserialize from a list of their fields; in these files that is a mistake.
    fn deserialize_struct<V: Visitor<'n>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match self.0.value {
            Value::Map(_) => self.deserialize_any(visitor),
            _ => Err(self.misfit(&visitor)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'n>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_string<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0.value {
            Value::Text(_) => self.deserialize_any(visitor),
            _ => Err(self.misfit(&visitor)),
        }
    }

    fn deserialize_str<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Misfit> {
        self.deserialize_string(visitor)
    }

    fn deserialize_bool<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0.value {
            Value::Bool(_) => self.deserialize_any(visitor),
            _ => Err(self.misfit(&"true or false")),
        }
    }

    fn deserialize_i64<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0.value {
            Value::Integer(_) => self.deserialize_any(visitor),
            _ => Err(self.misfit(&"a whole number")),
        }
    }

    fn deserialize_seq<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0.value {
            Value::List(_) => self.deserialize_any(visitor),
            _ => Err(self.misfit(&"a list")),
        }
    }

    fn deserialize_map<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0.value {
            Value::Map(_) => self.deserialize_any(visitor),
            _ => Err(self.misfit(&"an object")),
        }
    }

    fn deserialize_enum<V: Visitor<'n>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match &self.0.value {
            Value::Text(text) => {
                visitor.visit_enum(Variant(text)).map_err(|misfit| misfit.placed(self.0.mark))
            }
            _ => Err(self.misfit(&format!("one of {}", variants.join(", ")).as_str())),
        }
    }

    forward_to_deserialize_any! {
        <W: Visitor<'n>>
        i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct
        identifier
    }
}

struct Elements {
    list: Enumerate<vec::IntoIter<DocumentNode>>,
}

impl<'n> SeqAccess<'n> for Elements {
    type Error = Misfit;

    fn next_element_seed<T: DeserializeSeed<'n>>(&mut self, seed: T) -> Result<Option<T::Value>, Misfit> {
        let Some((index, node)) = self.list.next() else { return Ok(None) };
        let mark = node.mark;
        let element = seed.deserialize(NodeDeserializer(node)).map(Some);
        element.map_err(|misfit| misfit.placed(mark).map(|fault| fault.at(index)))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.list.len())
    }
}

struct Members {
    entries: vec::IntoIter<MapEntry>,
    current: Option<MapEntry>,
}

impl<'n> MapAccess<'n> for Members {
    type Error = Misfit;

    fn next_key_seed<K: DeserializeSeed<'n>>(&mut self, seed: K) -> Result<Option<K::Value>, Misfit> {
        self.current = self.entries.next();
        let Some(entry) = &self.current else { return Ok(None) };
        seed.deserialize(StrDeserializer::<Misfit>::new(&entry.key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'n>>(&mut self, seed: V) -> Result<V::Value, Misfit> {
        let Some(MapEntry { key, value, .. }) = self.current.take() else {
            return Err(de::Error::custom("a value before its key"));
        };
        let mark = value.mark;
        let value = seed.deserialize(NodeDeserializer(value));
        value.map_err(|misfit| misfit.placed(mark).map(|fault| fault.under(&key)))
    }
}

/// An enum's variant without data, written as text.
struct Variant<'n>(&'n str);

impl<'n> EnumAccess<'n> for Variant<'_> {
    type Error = Misfit;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'n>>(self, seed: V) -> Result<(V::Value, Self), Misfit> {
        Ok((seed.deserialize(StrDeserializer::<Misfit>::new(self.0))?, self))
    }
}

impl<'n> VariantAccess<'n> for Variant<'_> {
    type Error = Misfit;

    fn unit_variant(self) -> Result<(), Misfit> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'n>>(self, _seed: T) -> Result<T::Value, Misfit> {
        Err(de::Error::custom("only names without data are supported here"))
    }

    fn tuple_variant<V: Visitor<'n>>(self, _len: usize, _visitor: V) -> Result<V::Value, Misfit> {
        Err(de::Error::custom("only names without data are supported here"))
    }

    fn struct_variant<V: Visitor<'n>>(
        self,
        _fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Misfit> {
        Err(de::Error::custom("only names without data are supported here"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::JsonText;
    use super::*;

    #[derive(Debug, serde::Deserialize, PartialEq)]
    #[serde(expecting = "a thing")]
    struct Thing {
        name: String,
        #[serde(default)]
        on: Option<bool>,
        #[serde(default)]
        many: Vec<Colour>,
        #[serde(default)]
        labels: std::collections::BTreeMap<String, String>,
        #[serde(default)]
        inner: Option<Box<Thing>>,
    }

    #[derive(Debug, serde::Deserialize, PartialEq)]
    enum Colour {
        Red,
        Blue,
    }

    fn read(json: &str) -> Result<Thing, DocumentError> {
        let mut text = JsonText::new(json);
        let (raw, _) = text.value_at(0)?;
        let node = text.node(raw)?;
        from_node(node)
    }

    #[test]
    fn a_tree_becomes_a_typed_value_and_unknown_fields_are_skipped() {
        let thing = read(r#"{"x": [{}], "name": "n", "on": null, "many": ["Red"], "labels": {"a": "b"}}"#);
        let labels = [("a".to_owned(), "b".to_owned())].into();
        let expected = Thing { name: "n".into(), on: None, many: vec![Colour::Red], labels, inner: None };
        assert_eq!(thing, Ok(expected));
    }

    #[test]
    fn an_error_names_line_column_field_and_what_is_expected() {
        for (json, expected) in [
            ("{\n \"on\": true}", "line 1, column 1: name: missing"),
            (
                "{\"name\":\n  7}",
                "line 2, column 3: name: expected a string, found the number 7 (put it in quotes)",
            ),
            (
                r#"{"name": "n", "on": "yes"}"#,
                "column 21: on: expected true or false, found the string \"yes\"",
            ),
            (r#"{"name": "n", "on": []}"#, "on: expected true or false, found a list"),
            (r#"{"name": "n", "many": {}}"#, "many: expected a list, found an object"),
            (
                r#"{"name": "n", "many": ["Red", "Pink"]}"#,
                "many[1]: expected one of Red, Blue, found \"Pink\"",
            ),
            (r#"{"name": "n", "many": [3]}"#, "many[0]: expected one of Red, Blue, found the number 3"),
            (r#"{"name": "n", "labels": {"a.b/c": 1}}"#, "labels[\"a.b/c\"]: expected a string"),
            (r#"{"name": "n", "inner": {"on": true}}"#, "column 24: inner.name: missing"),
            (r#"{"name": "n", "inner": ["n"]}"#, "inner: expected a thing, found a list"),
            (r#"{"name": "n", "name": "m"}"#, "name: this key appears twice"),
            (r#"{"name": "n", "x": {"y": 1, "y": 2}}"#, "x.y: this key appears twice"),
        ] {
            let said = read(json).unwrap_err().to_string();
            assert!(said.contains(expected), "{json} gave {said}");
        }
    }
}
