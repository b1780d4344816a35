//! The document tree of JSON and YAML text, in which every value has its line and column.
//!
//! [`json`] and [`yaml`] build the tree, one object at a time; [`from_node`] turns it into typed values, with errors that name
//! line, column and field; [`emit`] writes YAML, and serde JSON. The text is untrusted: depth, aliases and the size of a single piece are
//! limited, and nothing panics.

mod convert;
mod de;
pub mod emit;
pub mod file;
pub mod json;
pub mod yaml;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

pub use de::from_node;

/// The deepest nesting: deeper is an error rather than a stack overflow. Real schemas reach about 50.
const MAX_DEPTH: usize = 128;

/// A place in the text, both counted from 1; columns count characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl Mark {
    /// The start of a text.
    pub const START: Mark = Mark { line: 1, column: 1 };

    /// Line and column, capped at the range of `u32`.
    fn new(line: usize, column: usize) -> Self {
        Self {
            line: u32::try_from(line).unwrap_or(u32::MAX),
            column: u32::try_from(column).unwrap_or(u32::MAX),
        }
    }
}

/// A value and its position. Small on purpose: a text of megabytes has millions of them.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentNode {
    /// Where it starts.
    pub mark: Mark,
    /// The value.
    pub value: Value,
}

/// The value of a [`DocumentNode`].
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Any other number, and whole ones too large for the above.
    Float(f64),
    /// A string.
    Text(Box<str>),
    /// A list.
    List(Box<[DocumentNode]>),
    /// An object, its keys in the order written, each once (unless read by [`yaml::Reader::literal`]).
    Map(Box<[MapEntry]>),
}

/// One key of a [`Value::Map`] and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct MapEntry {
    /// Where the key starts; in JSON, where its value does.
    pub mark: Mark,
    /// The key, shared with others of its name.
    pub key: Arc<str>,
    /// The value.
    pub value: DocumentNode,
}

impl DocumentNode {
    /// An object. A key that appears twice is an error: readers would disagree on which one counts.
    pub fn map(mark: Mark, entries: Vec<MapEntry>) -> Result<Self, DocumentError> {
        no_key_twice(&entries)?;
        Ok(Self { mark, value: Value::Map(entries.into()) })
    }

    /// The value under `key`, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&DocumentNode> {
        match &self.value {
            Value::Map(entries) => find(entries, key),
            _ => None,
        }
    }

    /// The text, if this is text.
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// The value under `key`.
pub fn find<'n>(entries: &'n [MapEntry], key: &str) -> Option<&'n DocumentNode> {
    entries.iter().find(|entry| &*entry.key == key).map(|entry| &entry.value)
}

/// The value as errors name it: `the string "x"`, `a list`.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Enough characters to recognise a value, which may be megabytes.
        const SHOWN: usize = 40;
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Integer(value) => write!(f, "the number {value}"),
            Value::Float(value) => write!(f, "the number {value}"),
            Value::Text(text) => {
                let cut: String = text.chars().take(SHOWN).collect();
                write!(f, "the string {cut:?}{}", if cut.len() < text.len() { "…" } else { "" })
            }
            Value::List(_) => f.write_str("a list"),
            Value::Map(_) => f.write_str("an object"),
        }
    }
}

/// An error in the text: line and column, field, and problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentError {
    /// Where it was noticed.
    pub mark: Mark,
    /// From the inside out, as it is built while an error travels up.
    path: Vec<Step>,
    /// What is wrong, and what is expected.
    pub problem: String,
}

/// One step of a [`DocumentError`]'s path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

impl DocumentError {
    /// `problem` at `mark`, in no field yet.
    pub fn new(mark: Mark, problem: impl Into<String>) -> Self {
        Self { mark, path: Vec::new(), problem: problem.into() }
    }

    /// Adds `key` of the enclosing object to the path.
    #[must_use]
    pub fn under(mut self, key: &str) -> Self {
        self.path.push(Step::Key(key.to_owned()));
        self
    }

    /// Adds `index` of the enclosing list to the path.
    #[must_use]
    pub fn at(mut self, index: usize) -> Self {
        self.path.push(Step::Index(index));
        self
    }

    /// The field as people write it: `items[3].metadata.labels["a.b/c"]`. Empty if the error has no field.
    pub fn field(&self) -> String {
        let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        let mut field = String::new();
        for step in self.path.iter().rev() {
            match step {
                Step::Index(index) => field = format!("{field}[{index}]"),
                Step::Key(key) if !key.is_empty() && key.chars().all(plain) => {
                    field.push_str(if field.is_empty() { "" } else { "." });
                    field.push_str(key);
                }
                Step::Key(key) => field = format!("{field}[{key:?}]"),
            }
        }
        field
    }
}

/// `line 3, column 7: metadata.name: missing`.
impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: ", self.mark.line, self.mark.column)?;
        let field = self.field();
        if !field.is_empty() {
            write!(f, "{field}: ")?;
        }
        f.write_str(&self.problem)
    }
}

impl std::error::Error for DocumentError {}

fn no_key_twice(entries: &[MapEntry]) -> Result<(), DocumentError> {
    // Most objects are small; a set for each of them would cost more than all the rest of reading.
    const SMALL: usize = 16;
    let twice =
        |at: &MapEntry| DocumentError::new(at.mark, "this key appears twice: keep one").under(&at.key);
    if entries.len() <= SMALL {
        let repeated = |(i, entry): &(usize, &MapEntry)| entries.iter().take(*i).any(|e| e.key == entry.key);
        return entries.iter().enumerate().find(repeated).map_or(Ok(()), |(_, entry)| Err(twice(entry)));
    }
    let mut seen = HashSet::with_capacity(entries.len());
    entries.iter().find(|entry| !seen.insert(&*entry.key)).map_or(Ok(()), |entry| Err(twice(entry)))
}

/// Interns keys, since objects repeat the same few.
#[derive(Debug, Clone, Default)]
struct Keys(HashSet<Arc<str>>);

impl Keys {
    /// How many keys are kept. Keys can also be data, all different.
    const REMEMBERED: usize = 1024;

    fn shared(&mut self, key: &str) -> Arc<str> {
        if let Some(known) = self.0.get(key) {
            return Arc::clone(known);
        }
        let new: Arc<str> = key.into();
        if self.0.len() < Self::REMEMBERED {
            self.0.insert(Arc::clone(&new));
        }
        new
    }
}
