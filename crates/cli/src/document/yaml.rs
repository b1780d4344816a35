//! YAML text → [`Node`]s with line and column, read piece by piece.
//!
//! A [`Reader`] can hand out a document's parts one at a time, so that a list of a million objects never is in
//! memory as a whole. Scalars mean what they mean in YAML 1.2's core schema.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::str::Chars;

use saphyr_parser::{BufferedInput, Event, Marker, Parser, ScalarStyle, Span, Tag};

use super::{Entry, Fault, MAX_DEPTH, Mark, Node, Value, no_key_twice};

/// What one document's anchors may keep and its aliases may copy, in nodes. A few lines of nested aliases would
/// otherwise fill any memory.
const MAX_ALIASED: usize = 100_000;

/// How many characters may lie between two events. The scanner buffers a whole `{…}` that may turn out to be a
/// key, at ten times its size.
const MAX_PIECE: usize = 16 << 20;

/// Reads YAML documents.
#[derive(Clone)]
pub struct Reader<'t> {
    parser: Parser<'t, BufferedInput<Metered<'t>>>,
    allowance: Rc<Cell<usize>>,
    first_line: usize,
    /// Complete anchored nodes of this document.
    anchors: HashMap<usize, Node>,
    aliased: usize,
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
    pub fn new(text: &'t str, first_line: usize) -> Self {
        let allowance = Rc::new(Cell::new(MAX_PIECE));
        let chars = Metered { chars: text.chars(), allowance: Rc::clone(&allowance) };
        let parser = Parser::new_from_iter(chars);
        Self { parser, allowance, first_line, anchors: HashMap::new(), aliased: 0 }
    }

    /// Goes on to the next document; false after the last one.
    pub fn next_document(&mut self) -> Result<bool, Fault> {
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
    pub fn enter_map(&mut self) -> Result<bool, Fault> {
        self.enter(|event| matches!(event, Event::MappingStart(0, _)))
    }

    /// Steps into the list that comes next; false, and nothing is read, if it is something else.
    pub fn enter_list(&mut self) -> Result<bool, Fault> {
        self.enter(|event| matches!(event, Event::SequenceStart(0, _)))
    }

    /// Inside an object, before a key: the next key; `None` at its end, which is read.
    pub fn key(&mut self) -> Result<Option<(String, Mark)>, Fault> {
        let (event, mark) = self.next()?;
        match event {
            Event::MappingEnd => Ok(None),
            Event::Scalar(text, ScalarStyle::Plain, ..) if text == "<<" => {
                Err(Fault::new(mark, "merge keys (<<) are not understood: write the fields out"))
            }
            Event::Scalar(text, ..) => Ok(Some((text.into_owned(), mark))),
            _ => Err(Fault::new(mark, "a key must be plain text")),
        }
    }

    /// Inside a list: whether another element follows. The list's end is read.
    pub fn more(&mut self) -> Result<bool, Fault> {
        Ok(!self.enter(|event| matches!(event, Event::SequenceEnd))?)
    }

    /// The whole value that comes next.
    pub fn node(&mut self) -> Result<Node, Fault> {
        self.tree(0)
    }

    /// Reads past the value that comes next.
    pub fn skip(&mut self) -> Result<(), Fault> {
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
    pub fn mark(&mut self) -> Result<Mark, Fault> {
        self.peek().map(|(_, mark)| mark)
    }

    fn tree(&mut self, depth: usize) -> Result<Node, Fault> {
        let (event, mark) = self.next()?;
        if depth > MAX_DEPTH {
            return Err(Fault::new(mark, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        let (anchor, value) = match event {
            Event::Alias(anchor) => return self.alias(anchor, mark, depth),
            Event::Scalar(text, style, anchor, tag) => {
                (anchor, scalar(text.into_owned(), style, tag.as_deref(), mark)?)
            }
            Event::SequenceStart(anchor, tag) => {
                known_tag(tag.as_deref(), mark)?;
                let mut list = Vec::new();
                while self.more()? {
                    list.push(self.tree(depth + 1).map_err(|fault| fault.at(list.len()))?);
                }
                (anchor, Value::List(list))
            }
            Event::MappingStart(anchor, tag) => {
                known_tag(tag.as_deref(), mark)?;
                let mut entries = Vec::new();
                while let Some((key, mark)) = self.key()? {
                    let value = self.tree(depth + 1).map_err(|fault| fault.under(&key))?;
                    entries.push(Entry { mark, key, value });
                }
                no_key_twice(&entries)?;
                (anchor, Value::Map(entries))
            }
            _ => return Err(Fault::new(mark, "a value is expected here")),
        };
        let node = Node { mark, value };
        if anchor != 0 {
            self.spend(size(&node), mark)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn alias(&mut self, anchor: usize, mark: Mark, depth: usize) -> Result<Node, Fault> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(Fault::new(mark, "an alias inside the value that it stands for"));
        };
        if depth + height(node) > MAX_DEPTH {
            return Err(Fault::new(mark, format!("nested deeper than {MAX_DEPTH} levels, with aliases")));
        }
        let node = node.clone();
        self.spend(size(&node), mark)?;
        Ok(node)
    }

    fn spend(&mut self, nodes: usize, mark: Mark) -> Result<(), Fault> {
        self.aliased += nodes;
        if self.aliased > MAX_ALIASED {
            return Err(Fault::new(mark, format!("anchors and aliases stand for more than {MAX_ALIASED} values")));
        }
        Ok(())
    }

    fn enter(&mut self, wanted: impl FnOnce(&Event<'_>) -> bool) -> Result<bool, Fault> {
        let found = wanted(self.peek()?.0);
        if found {
            self.next()?;
        }
        Ok(found)
    }

    fn peek(&mut self) -> Result<(&Event<'t>, Mark), Fault> {
        self.allowance.set(MAX_PIECE);
        let first_line = self.first_line;
        match self.parser.peek() {
            _ if self.allowance.get() == 0 => Err(too_large(first_line)),
            Some(Ok((event, span))) => Ok((event, mark(span.start, first_line))),
            Some(Err(error)) => Err(bad_yaml(&error, first_line)),
            None => Err(Fault::new(Mark::START, "the text ends too early")),
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Mark), Fault> {
        self.allowance.set(MAX_PIECE);
        let event = self.parser.next_event();
        // Before the event itself: without characters the scanner believes in the end of the text.
        if self.allowance.get() == 0 {
            return Err(too_large(self.first_line));
        }
        match event {
            Some(Ok((event, Span { start, .. }))) => Ok((event, mark(start, self.first_line))),
            Some(Err(error)) => Err(bad_yaml(&error, self.first_line)),
            None => Err(Fault::new(Mark::START, "the text ends too early")),
        }
    }
}

fn mark(marker: Marker, first_line: usize) -> Mark {
    Mark { line: marker.line().max(1) - 1 + first_line, column: marker.col() + 1 }
}
