//! Parses YAML text into [`DocumentNode`]s with line and column, piece by piece.
//!
//! A [`Reader`] can return the parts of a document one at a time, so that a list of a million objects is never in memory as a
//! whole. Scalars follow YAML 1.2's core schema.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::str::Chars;
use std::sync::Arc;

use saphyr_parser::{BufferedInput, Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use super::{DocumentError, DocumentNode, Keys, MAX_DEPTH, MapEntry, Mark, Value, no_key_twice};

/// The most nodes that one document's anchors keep and its aliases copy. Without the limit, a few lines of nested aliases would
/// fill any memory.
const MAX_ALIASED: usize = 100_000;

/// The most characters between two events. The scanner buffers a whole `{…}` that may turn out to be a key, at ten times its
/// size.
const MAX_PIECE: usize = 16 << 20;

/// Reads YAML documents.
#[derive(Clone)]
pub struct Reader<'t> {
    parser: Parser<'t, BufferedInput<Metered<'t>>>,
    allowance: Rc<Cell<usize>>,
    first_line: u32,
    keys: Keys,
    /// Complete anchored nodes of this document.
    anchors: HashMap<usize, DocumentNode>,
    aliased: usize,
    literal: bool,
    /// The place of the last event: an error without its own place is reported there.
    last: Mark,
}

/// The text's characters, until the allowance is used up.
#[derive(Clone)]
struct Metered<'t> {
    chars: Chars<'t>,
    allowance: Rc<Cell<usize>>,
}

impl Iterator for Metered<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        let left = self.allowance.get().checked_sub(1)?;
        self.allowance.set(left);
        self.chars.next()
    }
}

impl<'t> Reader<'t> {
    /// Reads `text`, whose first line is line `first_line` of the file.
    pub fn new(text: &'t str, first_line: u32) -> Self {
        let allowance = Rc::new(Cell::new(MAX_PIECE));
        let chars = Metered { chars: text.chars(), allowance: Rc::clone(&allowance) };
        let parser = Parser::new_from_iter(chars);
        Self {
            parser,
            allowance,
            first_line,
            keys: Keys::default(),
            anchors: HashMap::new(),
            aliased: 0,
            literal: false,
            last: Mark::START,
        }
    }

    /// Reads `text` as written, for readers that know the type of each value: scalars are text or null (`1.10` is not 1.1), and
    /// a repeated key is returned twice.
    pub fn literal(text: &'t str) -> Self {
        Self { literal: true, ..Self::new(text, 1) }
    }

    /// Goes on to the next document; false after the last one.
    pub fn next_document(&mut self) -> Result<bool, DocumentError> {
        loop {
            match self.next()? {
                (Event::DocumentStart(_), _) => {
                    self.anchors.clear();
                    self.aliased = 0;
                    return Ok(true);
                }
                (Event::StreamEnd, _) => return Ok(false),
                _ => {}
            }
        }
    }

    /// Steps into the object that comes next; false, and nothing is read, if it is something else.
    pub fn enter_map(&mut self) -> Result<bool, DocumentError> {
        self.enter(|event| matches!(event, Event::MappingStart(0, _)))
    }

    /// Steps into the list that comes next; false, and nothing is read, if it is something else.
    pub fn enter_list(&mut self) -> Result<bool, DocumentError> {
        self.enter(|event| matches!(event, Event::SequenceStart(0, _)))
    }

    /// Inside an object, before a key: the next key; `None` at the end of the object, which is read.
    pub fn key(&mut self) -> Result<Option<(Arc<str>, Mark)>, DocumentError> {
        let (event, mark) = self.next()?;
        match event {
            Event::MappingEnd => Ok(None),
            Event::Scalar(text, ScalarStyle::Plain, ..) if text == "<<" => {
                Err(DocumentError::new(mark, "merge keys (<<) are not supported: write the fields out"))
            }
            Event::Scalar(text, ..) => Ok(Some((self.keys.shared(&text), mark))),
            _ => Err(DocumentError::new(mark, "a key must be plain text")),
        }
    }

    /// Inside a list: true if another element follows. Reads past the list's end.
    pub fn more(&mut self) -> Result<bool, DocumentError> {
        Ok(!self.enter(|event| matches!(event, Event::SequenceEnd))?)
    }

    /// The whole value that comes next.
    pub fn node(&mut self) -> Result<DocumentNode, DocumentError> {
        self.tree(0)
    }

    /// Reads past the value that comes next.
    pub fn skip(&mut self) -> Result<(), DocumentError> {
        let mut depth = 0_usize;
        loop {
            match self.next()?.0 {
                Event::MappingStart(..) | Event::SequenceStart(..) => depth += 1,
                Event::MappingEnd | Event::SequenceEnd => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Where the next value starts.
    pub fn mark(&mut self) -> Result<Mark, DocumentError> {
        self.peek().map(|(_, mark)| mark)
    }

    fn tree(&mut self, depth: usize) -> Result<DocumentNode, DocumentError> {
        let (event, mark) = self.next()?;
        if depth > MAX_DEPTH {
            return Err(DocumentError::new(mark, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        let (anchor, value) = match event {
            Event::Alias(anchor) => return self.alias(anchor, mark, depth),
            Event::Scalar(text, style, anchor, tag) => {
                (anchor, self.scalar(text.into_owned(), style, tag.as_deref(), mark)?)
            }
            Event::SequenceStart(anchor, tag) => {
                known_tag(tag.as_deref(), mark)?;
                let mut list = Vec::new();
                while self.more()? {
                    list.push(self.tree(depth + 1).map_err(|fault| fault.at(list.len()))?);
                }
                (anchor, Value::List(list.into()))
            }
            Event::MappingStart(anchor, tag) => {
                known_tag(tag.as_deref(), mark)?;
                let mut entries = Vec::new();
                while let Some((key, mark)) = self.key()? {
                    let value = self.tree(depth + 1).map_err(|fault| fault.under(&key))?;
                    entries.push(MapEntry { mark, key, value });
                }
                if !self.literal {
                    no_key_twice(&entries)?;
                }
                (anchor, Value::Map(entries.into()))
            }
            _ => return Err(DocumentError::new(mark, "a value is expected here")),
        };
        let node = DocumentNode { mark, value };
        if anchor != 0 {
            self.spend(size(&node), mark)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn scalar(
        &self,
        text: String,
        style: ScalarStyle,
        tag: Option<&Tag>,
        mark: Mark,
    ) -> Result<Value, DocumentError> {
        let is_text = known_tag(tag, mark)? || (style != ScalarStyle::Plain && tag.is_none());
        let is_text = is_text || (self.literal && !is_null(&text));
        Ok(if is_text { Value::Text(text.into()) } else { plain(text) })
    }

    fn alias(&mut self, anchor: usize, mark: Mark, depth: usize) -> Result<DocumentNode, DocumentError> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(DocumentError::new(mark, "an alias inside its own anchor"));
        };
        if depth + height(node) > MAX_DEPTH {
            return Err(DocumentError::new(
                mark,
                format!("nested deeper than {MAX_DEPTH} levels, with aliases"),
            ));
        }
        let node = node.clone();
        self.spend(size(&node), mark)?;
        Ok(node)
    }

    fn spend(&mut self, nodes: usize, mark: Mark) -> Result<(), DocumentError> {
        self.aliased += nodes;
        if self.aliased > MAX_ALIASED {
            return Err(DocumentError::new(
                mark,
                format!("anchors and aliases stand for more than {MAX_ALIASED} values"),
            ));
        }
        Ok(())
    }

    fn enter(&mut self, wanted: impl FnOnce(&Event<'_>) -> bool) -> Result<bool, DocumentError> {
        let found = wanted(self.peek()?.0);
        if found {
            self.next()?;
        }
        Ok(found)
    }

    fn peek(&mut self) -> Result<(&Event<'t>, Mark), DocumentError> {
        self.allowance.set(MAX_PIECE);
        match self.parser.peek() {
            _ if self.allowance.get() == 0 => Err(too_large(self.last)),
            Some(Ok((event, span))) => Ok((event, mark(span.start, self.first_line))),
            Some(Err(error)) => Err(bad_yaml(&error, self.first_line)),
            None => Err(DocumentError::new(self.last, "the text ends too early")),
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Mark), DocumentError> {
        self.allowance.set(MAX_PIECE);
        let event = self.parser.next_event();
        // Check this before the event: without characters the scanner reports the end of the text.
        if self.allowance.get() == 0 {
            return Err(too_large(self.last));
        }
        match event {
            Some(Ok((event, span))) => {
                self.last = mark(span.start, self.first_line);
                Ok((event, self.last))
            }
            Some(Err(error)) => Err(bad_yaml(&error, self.first_line)),
            None => Err(DocumentError::new(self.last, "the text ends too early")),
        }
    }
}

fn mark(marker: Marker, first_line: u32) -> Mark {
    Mark::new(marker.line().max(1) - 1 + first_line as usize, marker.col() + 1)
}

fn bad_yaml(error: &ScanError, first_line: u32) -> DocumentError {
    DocumentError::new(mark(*error.marker(), first_line), format!("not YAML: {}", error.info()))
}

fn too_large(mark: Mark) -> DocumentError {
    let problem =
        "the value that starts here is larger than 16 MiB: write it in YAML's block style, or as JSON";
    DocumentError::new(mark, problem)
}

/// How many values a node is made of.
fn size(node: &DocumentNode) -> usize {
    1 + match &node.value {
        Value::List(list) => list.iter().map(size).sum(),
        Value::Map(entries) => entries.iter().map(|entry| size(&entry.value)).sum(),
        _ => 0,
    }
}

/// The depth of a node; 0 for a scalar.
fn height(node: &DocumentNode) -> usize {
    match &node.value {
        Value::List(list) => 1 + list.iter().map(height).max().unwrap_or(0),
        Value::Map(entries) => 1 + entries.iter().map(|entry| height(&entry.value)).max().unwrap_or(0),
        _ => 0,
    }
}

/// True if a tag makes the value a string. Tags of applications are errors: their meaning is unknown.
fn known_tag(tag: Option<&Tag>, mark: Mark) -> Result<bool, DocumentError> {
    match tag {
        None => Ok(false),
        Some(tag) if tag.handle == "!" && tag.suffix.is_empty() => Ok(true),
        Some(tag) if tag.is_yaml_core_schema() => match tag.suffix.as_str() {
            "str" => Ok(true),
            "null" | "bool" | "int" | "float" | "map" | "seq" => Ok(false),
            other => Err(DocumentError::new(mark, format!("the tag !!{other} is not supported"))),
        },
        Some(tag) => Err(DocumentError::new(mark, format!("the tag {tag} is not supported"))),
    }
}

/// Resolves a plain scalar: <https://yaml.org/spec/1.2.2/#1032-tag-resolution>.
fn plain(text: String) -> Value {
    match text.as_str() {
        null if is_null(null) => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        _ => match integer(&text).or_else(|| float(&text)) {
            Some(number) => number,
            None => Value::Text(text.into()),
        },
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

fn integer(text: &str) -> Option<Value> {
    let number = if let Some(hex) = text.strip_prefix("0x") {
        i64::from_str_radix(hex, 16)
    } else if let Some(octal) = text.strip_prefix("0o") {
        i64::from_str_radix(octal, 8)
    } else {
        text.parse()
    };
    number.ok().map(Value::Integer)
}

fn float(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let infinite = matches!(unsigned, ".inf" | ".Inf" | ".INF");
    if infinite {
        return Some(Value::Float(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY }));
    }
    // Rust would also read "inf", "nan" and "infinity", which are words in YAML.
    let numeric = unsigned.bytes().all(|b| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    (numeric && unsigned.starts_with(|c: char| c == '.' || c.is_ascii_digit()))
        .then(|| text.parse().ok().map(Value::Float))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str) -> Result<DocumentNode, DocumentError> {
        let mut reader = Reader::new(text, 1);
        assert!(reader.next_document()?, "no document in {text:?}");
        let node = reader.node()?;
        while reader.next_document()? {
            reader.skip()?;
        }
        Ok(node)
    }

    fn fault(text: &str) -> String {
        only(text).unwrap_err().to_string()
    }

    #[test]
    fn plain_scalars_mean_what_the_core_schema_says() {
        use Value::{Bool, Float, Integer, Null, Text};
        let text = |text: &str| Text(text.into());
        for (written, meant) in [
            ("~", Null),
            ("null", Null),
            ("true", Bool(true)),
            ("False", Bool(false)),
            ("yes", text("yes")),
            ("on", text("on")),
            ("8080", Integer(8080)),
            ("-7", Integer(-7)),
            ("+7", Integer(7)),
            ("0x1F", Integer(31)),
            ("0o17", Integer(15)),
            ("1.5", Float(1.5)),
            ("1e3", Float(1000.0)),
            (".5", Float(0.5)),
            ("-.inf", Float(f64::NEG_INFINITY)),
            ("99999999999999999999", Float(1e20)),
            ("10.0.0.1", text("10.0.0.1")),
            ("inf", text("inf")),
            ("nan", text("nan")),
            ("0x", text("0x")),
            ("1e", text("1e")),
            ("2024-01-01T00:00:00Z", text("2024-01-01T00:00:00Z")),
            ("\"8080\"", text("8080")),
            ("'true'", text("true")),
            ("!!str 8080", text("8080")),
            ("!!int 8080", Integer(8080)),
            ("|\n  two\n  lines\n", text("two\nlines\n")),
        ] {
            assert_eq!(only(written).unwrap().value, meant, "{written}");
        }
    }

    #[test]
    fn a_literal_reader_keeps_scalars_as_written_and_keys_that_are_there_twice() {
        let mut reader = Reader::literal("a: 1.10\na: [007, True, ~, '']\n");
        assert!(reader.next_document().unwrap());
        let Value::Map(entries) = reader.node().unwrap().value else { panic!("not a map") };
        assert_eq!(entries.iter().map(|entry| &*entry.key).collect::<Vec<_>>(), ["a", "a"]);
        assert_eq!(entries[0].value.as_str(), Some("1.10"));
        let Value::List(list) = &entries[1].value.value else { panic!("not a list") };
        let texts: Vec<_> = list.iter().map(DocumentNode::as_str).collect();
        assert_eq!(texts, [Some("007"), Some("True"), None, Some("")]);
    }

    #[test]
    fn every_value_knows_its_line_and_column() {
        let node = only("a: 1\nb:\n  - x\n  - cö: [1, 2]\n").unwrap();
        let Some(Value::List(list)) = node.get("b").map(|b| &b.value) else { panic!("{node:?}") };
        assert_eq!(list[0].mark, Mark { line: 3, column: 5 });
        let inner = list[1].get("cö").unwrap();
        assert_eq!(inner.mark, Mark { line: 4, column: 9 });
    }

    #[test]
    fn what_cannot_be_a_tree_is_an_error_with_its_place() {
        for (text, expected) in [
            ("a: 1\nb: 2\na: 3\n", "line 3, column 1: a: this key appears twice"),
            ("a: &x [*x]", "line 1, column 8: a[0]: an alias inside"),
            ("a: {<<: 1}", "line 1, column 5: a: merge keys"),
            ("? [1]\n: 2\n", "line 1, column 3: a key must be plain text"),
            ("a: !Ref b", "line 1, column 4: a: the tag !Ref"),
            ("a: *b", "line 1, column 4: a: not YAML: while parsing node, found unknown anchor"),
            ("a:\n\tb: 1", "not YAML"),
        ] {
            let said = fault(text);
            assert!(said.contains(expected), "{text:?} gave {said}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
        assert!(fault(&"[".repeat(100_000)).contains("recursion limit"));
        assert!(fault(&"- ".repeat(100_000)).contains("nested deeper than 128"));
        let lines: String = (0..2000).map(|depth| " ".repeat(depth) + "a:\n").collect();
        assert!(fault(&lines).contains("nested deeper than 128"));
    }

    #[test]
    fn aliases_are_copies_and_bounded() {
        let node = only("a: &x {k: v}\nb: *x\n").unwrap();
        assert_eq!(node.get("b").and_then(|b| b.get("k")).and_then(DocumentNode::as_str), Some("v"));

        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for i in 1..12 {
            let of = format!("*a{}", i - 1);
            laughs = format!("{laughs}a{i}: &a{i} [{}]\n", vec![of; 9].join(", "));
        }
        assert!(fault(&laughs).contains("anchors and aliases stand for more than 100000 values"));

        let mut deep = "a0: &a0 [x]\n".to_owned();
        for i in 1..200 {
            deep = format!("{deep}a{i}: &a{i} [*a{}]\n", i - 1);
        }
        assert!(fault(&deep).contains("nested deeper than 128 levels, with aliases"));
    }

    #[test]
    fn a_single_piece_is_bounded_and_never_silently_cut() {
        let huge = format!("{{a: [{}]}}", "1, ".repeat(MAX_PIECE / 3));
        assert!(fault(&huge).contains("larger than 16 MiB"));
    }
}
