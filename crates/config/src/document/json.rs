//! Parses JSON text into [`DocumentNode`]s with line and column.
//!
//! `serde_json` splits and checks the text; the offset of a piece within the text gives its line.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{DocumentError, DocumentNode, Keys, MAX_DEPTH, MapEntry, Mark, Value, no_key_twice};

/// A JSON text, and the offset up to which its lines have been counted.
#[derive(Debug, Clone)]
pub struct JsonText<'t> {
    whole: &'t str,
    counted: usize,
    mark: Mark,
    keys: Keys,
}

/// A piece of JSON text, not parsed yet.
pub type Raw<'t> = &'t RawValue;

/// The keys of a JSON object and their values, not parsed yet.
pub type Members<'t> = Vec<(Cow<'t, str>, Raw<'t>)>;

impl<'t> JsonText<'t> {
    /// The whole of `text`.
    pub fn new(text: &'t str) -> Self {
        Self { whole: text, counted: 0, mark: Mark::START, keys: Keys::default() }
    }

    /// The value that starts at `offset`, and the offset of what comes after it.
    pub fn value_at(&mut self, offset: usize) -> Result<(Raw<'t>, usize), DocumentError> {
        let rest = self.whole.get(offset..).unwrap_or_default();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Raw<'t>>();
        match values.next() {
            Some(Ok(raw)) => Ok((raw, offset + values.byte_offset())),
            Some(Err(error)) => {
                let start = self.mark(offset);
                // Relative to `offset`, and with 0 for the place before the first character.
                let (line, column) = (error.line().max(1) - 1, error.column().max(1));
                let column = if line == 0 { start.column as usize - 1 + column } else { column };
                let mark = Mark::new(start.line as usize + line, column);
                Err(DocumentError::new(mark, format!("not JSON: {}", said(&error))))
            }
            None => {
                Err(DocumentError::new(self.mark(offset), "the text ends where a JSON value should start"))
            }
        }
    }

    /// Where `raw` starts.
    pub fn place(&mut self, raw: Raw<'t>) -> Mark {
        self.mark(raw.get().as_ptr().addr().saturating_sub(self.whole.as_ptr().addr()))
    }

    /// The members of the object `raw`; `None` if it is not an object.
    pub fn members(&mut self, raw: Raw<'t>) -> Result<Option<Members<'t>>, DocumentError> {
        if !raw.get().starts_with('{') {
            return Ok(None);
        }
        let members: Object<'t> = self.read(raw)?;
        Ok(Some(members.0))
    }

    /// The elements of the list `raw`; `None` if it is not a list.
    pub fn elements(&mut self, raw: Raw<'t>) -> Result<Option<Vec<Raw<'t>>>, DocumentError> {
        if !raw.get().starts_with('[') {
            return Ok(None);
        }
        self.read(raw).map(Some)
    }

    /// The whole tree of `raw`.
    pub fn node(&mut self, raw: Raw<'t>) -> Result<DocumentNode, DocumentError> {
        self.tree(raw, 0)
    }

    fn tree(&mut self, raw: Raw<'t>, depth: usize) -> Result<DocumentNode, DocumentError> {
        let mark = self.place(raw);
        if depth > MAX_DEPTH {
            return Err(DocumentError::new(mark, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        let value = match raw.get().as_bytes().first() {
            Some(b'{') => Value::Map(self.entries(raw, depth)?.into()),
            Some(b'[') => {
                let elements = self.elements(raw)?.unwrap_or_default();
                let tree = |(i, raw)| self.tree(raw, depth + 1).map_err(|fault| fault.at(i));
                Value::List(elements.into_iter().enumerate().map(tree).collect::<Result<_, _>>()?)
            }
            Some(b'"') => Value::Text(self.read(raw)?),
            Some(b't' | b'f') => Value::Bool(self.read(raw)?),
            Some(b'n') | None => Value::Null,
            Some(_) => match raw.get().parse() {
                Ok(integer) => Value::Integer(integer),
                Err(_) => Value::Float(self.read(raw)?),
            },
        };
        Ok(DocumentNode { mark, value })
    }

    fn entries(&mut self, raw: Raw<'t>, depth: usize) -> Result<Vec<MapEntry>, DocumentError> {
        let members = self.members(raw)?.unwrap_or_default();
        let mut entries = Vec::with_capacity(members.len());
        for (key, raw) in members {
            let value = self.tree(raw, depth + 1).map_err(|fault| fault.under(&key))?;
            entries.push(MapEntry { mark: value.mark, key: self.keys.shared(&key), value });
        }
        no_key_twice(&entries)?;
        Ok(entries)
    }

    fn read<T: Deserialize<'t>>(&mut self, raw: Raw<'t>) -> Result<T, DocumentError> {
        serde_json::from_str(raw.get())
            .map_err(|error| DocumentError::new(self.place(raw), format!("not JSON: {}", said(&error))))
    }

    /// The line and column of `offset`. Counts on from the last call: calls in the order of the text count it only once.
    pub fn mark(&mut self, offset: usize) -> Mark {
        if offset < self.counted {
            (self.counted, self.mark) = (0, Mark::START);
        }
        for &byte in self.whole.as_bytes().get(self.counted..offset).unwrap_or_default() {
            if byte == b'\n' {
                self.mark = Mark { line: self.mark.line.saturating_add(1), column: 1 };
            } else if byte & 0b1100_0000 != 0b1000_0000 {
                // Not a continuation byte: a new character.
                self.mark.column = self.mark.column.saturating_add(1);
            }
        }
        self.counted = offset;
        self.mark
    }
}

/// The message of `serde_json` without its line and column, which are relative to the piece.
fn said(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(said, _)| said.to_owned())
}

struct Object<'t>(Members<'t>);

impl<'de: 't, 't> Deserialize<'de> for Object<'t> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(Key(key)) = map.next_key()? {
                    members.push((key, map.next_value()?));
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(Collect).map(Object)
    }
}

/// A key, borrowed from the text unless it has escapes.
#[derive(Deserialize)]
struct Key<'t>(#[serde(borrow)] Cow<'t, str>);
