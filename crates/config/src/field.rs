//! Reads and checks one value of a document. A wrong value is reported and read as `None`, so that the reader finds the other
//! problems too.

use std::collections::{HashMap, hash_map};
use std::fmt::{self, Display};
use std::hash::Hash;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::document::{DocumentNode, MapEntry, Mark, Value};
use crate::duration::HumanDuration;
use crate::errors::FileProblems;
use crate::size;

/// How much of a value or a key an error repeats.
const SHOWN: usize = 40;
/// How long a list of hosts, paths or addresses may be: hosts and paths are multiplied.
const LONGEST: usize = 50;

/// The position of a value and its path.
#[derive(Debug, Clone)]
pub struct FieldPlace {
    /// Line and column.
    pub mark: Mark,
    /// The keys that lead to it: `apps.hello.scale`.
    pub path: String,
}

impl Display for FieldPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in line {}", self.path, self.mark.line)
    }
}

/// Values that may be in the file only once, and the place of each.
pub struct Once<T>(HashMap<T, FieldPlace>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Eq + Hash> Once<T> {
    /// Records that `value` is at `place`. Returns the earlier place if there is one.
    pub fn claim(&mut self, value: T, place: &FieldPlace) -> Option<FieldPlace> {
        match self.0.entry(value) {
            hash_map::Entry::Occupied(first) => Some(first.get().clone()),
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(place.clone());
                None
            }
        }
    }
}

/// A value and its place.
pub struct Field<'n> {
    problems: &'n FileProblems,
    /// The place of its key, or of the value itself if it has no key.
    place: FieldPlace,
    node: &'n DocumentNode,
}

impl<'n> Field<'n> {
    /// The whole file.
    pub fn root(node: &'n DocumentNode, problems: &'n FileProblems) -> Self {
        Self { problems, place: FieldPlace { mark: Mark::START, path: String::new() }, node }
    }

    /// The place of its key, or of the value itself if it has no key.
    pub fn place(&self) -> &FieldPlace {
        &self.place
    }

    /// The value as the document has it.
    pub fn value(&self) -> &'n Value {
        &self.node.value
    }

    /// `value`, unless the file has it already.
    pub fn once<T: Clone + Eq + Hash>(&self, value: T, seen: &mut Once<T>) -> Option<T> {
        match seen.claim(value.clone(), &self.place) {
            Some(first) => self.refuse(format_args!("{first} has it already")),
            None => Some(value),
        }
    }

    /// Reports that the value is not allowed, and what is.
    pub fn refuse<T>(&self, allowed: impl Display) -> Option<T> {
        match &self.node.value {
            Value::Null => self.blame(format!("missing: {allowed}")),
            value => self.tell(self.node.mark, format!("{} is not allowed: {allowed}", shown(value))),
        }
    }

    fn refuse_for<T>(&self, allowed: impl Display, better: Option<String>) -> Option<T> {
        match better {
            Some(better) => self.refuse(format_args!("{allowed}; did you mean {better}?")),
            None => self.refuse(allowed),
        }
    }

    /// Reports a problem of the key.
    pub fn blame<T>(&self, what: impl Into<String>) -> Option<T> {
        self.tell(self.place.mark, what)
    }

    fn tell<T>(&self, mark: Mark, what: impl Into<String>) -> Option<T> {
        self.problems.push(mark, &self.place.path, what);
        None
    }

    /// The text. A NUL is not allowed: system calls end texts there.
    pub fn text(&self, allowed: impl Display) -> Option<&'n str> {
        match self.node.as_str() {
            Some(text) if !text.contains('\0') => Some(text),
            _ => self.refuse(allowed),
        }
    }

    /// The text parsed as a `T`; `allowed` describes the allowed values for the error.
    pub fn parse<T: FromStr>(&self, allowed: impl Display) -> Option<T> {
        self.parse_if(allowed, |_| true)
    }

    /// The text parsed as a `T` for which `holds` is true.
    pub fn parse_if<T: FromStr>(&self, allowed: impl Display, holds: impl FnOnce(&T) -> bool) -> Option<T> {
        self.text(&allowed)?.parse().ok().filter(holds).or_else(|| self.refuse(allowed))
    }

    /// A whole number in `range`.
    pub fn whole(&self, range: RangeInclusive<u32>) -> Option<u32> {
        let allowed = format!("a whole number from {} to {}", range.start(), range.end());
        self.parse_if(allowed, |number| range.contains(number))
    }

    /// A duration in `range`.
    pub fn duration(&self, range: RangeInclusive<HumanDuration>) -> Option<HumanDuration> {
        let (least, most) = (range.start(), range.end());
        let allowed = format!("a duration from {least} to {most}, like 500ms, 30s, 5m or 1h");
        let text = self.text(&allowed)?;
        // Do not guess the unit of a bare number: it could be seconds or milliseconds. Suggest seconds.
        let better = || text.parse::<u32>().is_ok().then(|| format!("{text}s"));
        text.parse().ok().filter(|span| range.contains(span)).or_else(|| self.refuse_for(allowed, better()))
    }

    /// A number of bytes.
    pub fn size(&self, range: RangeInclusive<usize>) -> Option<usize> {
        let (start, end) = range.into_inner();
        let range = start as u64..=end as u64;
        let text = self.text(size::allowed(&range))?;
        let bytes = size::parse(text, &range).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.or_else(|| self.refuse_for(size::allowed(&range), size::with_unit(text, &range)))
    }

    /// An IP address and a port.
    pub fn address(&self) -> Option<SocketAddr> {
        let allowed = "an IP address and a port, like 127.0.0.1:8080 or \"[::1]:8080\"";
        let text = self.text(allowed)?;
        let better = || {
            let port = text.strip_prefix("localhost").unwrap_or(text);
            let port: u16 = port.strip_prefix(':').unwrap_or(port).parse().ok()?;
            Some(format!("127.0.0.1:{port}"))
        };
        text.parse().ok().or_else(|| self.refuse_for(allowed, better()))
    }

    /// The elements of a list that is not empty.
    pub fn items(&self, allowed: impl Display) -> Option<Vec<Field<'n>>> {
        let Value::List(list) = &self.node.value else { return self.refuse(allowed) };
        if list.is_empty() {
            return self.tell(self.node.mark, format!("an empty list is not allowed: {allowed}"));
        }
        let item = |(index, node): (usize, &'n DocumentNode)| {
            let place = FieldPlace { mark: node.mark, path: format!("{}[{index}]", self.place.path) };
            Field { problems: self.problems, place, node }
        };
        Some(list.iter().enumerate().map(item).collect())
    }

    /// The results of `read` for the elements, without those that it refused.
    pub fn each<T>(
        &self,
        allowed: impl Display,
        read: impl FnMut(&Field<'n>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let items = self.items(allowed)?;
        if let Some(excess) = items.get(LONGEST) {
            return excess.blame(format!("too many entries: at most {LONGEST} are allowed"));
        }
        Some(items.iter().filter_map(read).collect())
    }

    /// The keys and values of an object, each key once. A missing value is an empty object: that is what remains when all lines
    /// are comments.
    pub fn entries(&self, allowed: impl Display) -> Option<Vec<(&'n str, Field<'n>)>> {
        let entries: &'n [MapEntry] = match &self.node.value {
            Value::Null => &[],
            Value::Map(entries) => entries,
            _ => return self.refuse(allowed),
        };
        let mut first: HashMap<&str, Mark> = HashMap::with_capacity(entries.len());
        let once = |entry: &'n MapEntry| {
            let place = FieldPlace { mark: entry.mark, path: join(&self.place.path, &entry.key) };
            let field = Field { problems: self.problems, place, node: &entry.value };
            match first.get(&*entry.key) {
                None => {
                    first.insert(&entry.key, entry.mark);
                    Some((&*entry.key, field))
                }
                Some(first) => {
                    field.blame(format!("this key appears twice, first in line {}: keep one", first.line))
                }
            }
        };
        Some(entries.iter().filter_map(once).collect())
    }

    /// An object that may have `keys` and no others.
    pub fn section(&self, keys: &[&str]) -> Option<Section<'n>> {
        let one_of = keys.join(", ");
        let entries = self.entries(format_args!("an object with {one_of}"))?;
        for (key, field) in entries.iter().filter(|(key, _)| !keys.contains(key)) {
            field.blame::<()>(match closest(key, keys) {
                Some(meant) => format!("unknown key: did you mean {meant}?"),
                None => format!("unknown key: expected one of {one_of}"),
            });
        }
        Some(Section { problems: self.problems, place: self.place.clone(), entries })
    }
}

/// An object whose keys are known.
pub struct Section<'n> {
    problems: &'n FileProblems,
    place: FieldPlace,
    entries: Vec<(&'n str, Field<'n>)>,
}

impl<'n> Section<'n> {
    /// The field of `key`, if it is there.
    pub fn get(&self, key: &str) -> Option<&Field<'n>> {
        self.entries.iter().find(|(name, _)| *name == key).map(|(_, field)| field)
    }

    /// True if the object has no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The section under `key`, empty if it is not there.
    #[must_use]
    pub fn section(&self, key: &str, keys: &[&str]) -> Section<'n> {
        let empty = || Section { problems: self.problems, place: self.place.clone(), entries: Vec::new() };
        self.get(key).and_then(|field| field.section(keys)).unwrap_or_else(empty)
    }

    /// Reports that the value of `key` is not allowed, and what is.
    pub fn refuse(&self, key: &str, allowed: &str) {
        match self.get(key) {
            Some(field) => field.refuse(allowed).unwrap_or_default(),
            None => self.tell(&self.place, format!("{key}: expected {allowed}")),
        }
    }

    /// Reports a problem at `place`.
    pub fn tell(&self, place: &FieldPlace, what: impl Into<String>) {
        self.problems.push(place.mark, &place.path, what);
    }

    /// The result of `read` for `key`, or `default`. A refused value also becomes the default while the rest is checked; a
    /// configuration with a problem is never returned.
    pub fn or<T>(&self, key: &str, default: T, read: impl FnOnce(&Field<'n>) -> Option<T>) -> T {
        self.get(key).and_then(read).unwrap_or(default)
    }

    /// The result of `read` for `key`, which is required.
    pub fn need<T>(
        &self,
        key: &str,
        allowed: impl Display,
        read: impl FnOnce(&Field<'n>) -> Option<T>,
    ) -> Option<T> {
        let Some(field) = self.get(key) else {
            self.problems.push(self.place.mark, &join(&self.place.path, key), format!("missing: {allowed}"));
            return None;
        };
        read(field)
    }
}

/// `apps.hello`, `apps["a b"]`.
fn join(path: &str, key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    // 63 is the longest name of an app.
    let plain = (1..=63).contains(&key.len()) && key.chars().all(plain);
    match path {
        _ if !plain => format!("{path}[{}]", quoted(key)),
        "" => key.to_owned(),
        _ => format!("{path}.{key}"),
    }
}

/// A value as errors show it: a plain word as it is, other text in quotes.
pub fn shown(value: &Value) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/*+@".contains(c);
    match value {
        Value::Text(text) if !text.is_empty() && text.len() <= SHOWN && text.chars().all(plain) => {
            text.to_string()
        }
        Value::Text(text) => quoted(text),
        other => other.to_string(),
    }
}

fn quoted(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((cut, _)) => format!("{:?}…", text.get(..cut).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

/// The known key that `key` was probably meant to be: for `idleAfter`, `comand`, `environment`.
pub fn closest<'k>(key: &str, keys: &[&'k str]) -> Option<&'k str> {
    let bare = |key: &str| -> Vec<char> {
        key.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_lowercase()).take(SHOWN).collect()
    };
    let written = bare(key);
    let distance = |known: &&str| {
        let known = bare(known);
        let longer = known.len() >= 3 && written.starts_with(&known);
        let edits = edits(&written, &known);
        if longer { edits.min(1) } else { edits }
    };
    let (distance, known) = keys.iter().map(|known| (distance(known), *known)).min()?;
    (distance <= if written.len() < 4 { 1 } else { 2 }).then_some(known)
}

/// How many letters to add, remove or change to get from one word to the other (Levenshtein).
fn edits(from: &[char], to: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (done, a) in from.iter().enumerate() {
        let mut next = vec![done + 1];
        let mut left = done + 1;
        for (b, above) in to.iter().zip(row.windows(2)) {
            let [before, above] = above else { continue };
            left = (before + usize::from(a != b)).min(above + 1).min(left + 1);
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}
