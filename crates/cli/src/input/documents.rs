//! Finds the objects in a text: JSON or YAML, one or several documents, plain or in a `List`.
//!
//! A `List` is split while it is read, so that only one of its items is in memory as a tree.

use std::borrow::Cow;

use rouse_config::document::json::{JsonText, Raw};
use rouse_config::document::yaml::Reader;
use rouse_config::document::{DocumentError, DocumentNode, MapEntry, Mark, Value, find};

/// The `apiVersion` and `kind` that a list gives to items without their own.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) api_version: String,
    pub(crate) kind: String,
}

/// Called for each object, with the `apiVersion` and `kind` of its list.
pub(crate) type Each<'e> = dyn FnMut(DocumentNode, Option<&Head>) -> Result<(), DocumentError> + 'e;

/// Calls `each` for all objects of `text`. Returns the number of documents that are not empty, or the number of the document
/// with an error.
pub(crate) fn walk(text: &str, each: &mut Each<'_>) -> Result<usize, (usize, DocumentError)> {
    let mut json = JsonText::new(text);
    let mut offset = 0;
    let mut document = 0;
    loop {
        let rest = text.get(offset..).unwrap_or_default();
        let start = rest.trim_start_matches(['\n', '\r', '\t', ' ']);
        // Read JSON after `---` as JSON: as YAML, a large object would take ten times its size in memory.
        let bare = start.strip_prefix("---").map_or(start, |after| after.trim_start());
        if start.is_empty() {
            return Ok(document);
        } else if bare.starts_with('[') {
            document += 1;
            return Err((document, list_at_the_top(json.mark(text.len() - bare.len()))));
        } else if is_json(bare) {
            document += 1;
            offset =
                json_document(&mut json, text.len() - bare.len(), each).map_err(|fault| (document, fault))?;
        } else if document > 0 && !start.starts_with(['-', '#']) {
            let mark = json.mark(text.len() - start.len());
            return Err((
                document,
                DocumentError::new(mark, "not JSON: only another object may follow, or --- and YAML"),
            ));
        } else {
            // The whole text if nothing was read yet: in YAML the first line's indentation counts.
            let begin = if document == 0 { 0 } else { text.len() - start.len() };
            let first_line = json.mark(begin).line;
            let yaml = text.get(begin..).unwrap_or_default();
            return yaml_documents(&mut Reader::new(yaml, first_line), document, each);
        }
    }
}

/// True if a text that starts with `{` is JSON, whose keys are quoted, rather than YAML's flow style.
pub(crate) fn is_json(text: &str) -> bool {
    text.strip_prefix('{').is_some_and(|rest| {
        let rest = rest.trim_start();
        rest.is_empty() || rest.starts_with(['"', '}'])
    })
}

fn list_at_the_top(mark: Mark) -> DocumentError {
    let hint = "take the objects out of the list (with jq: '.[]'), or put it under items of a List";
    DocumentError::new(mark, format!("expected an object with apiVersion and kind, found a list: {hint}"))
}

/// Reads the document at `offset`, and returns where it ends.
fn json_document(
    json: &mut JsonText<'_>,
    offset: usize,
    each: &mut Each<'_>,
) -> Result<usize, DocumentError> {
    let (raw, end) = json.value_at(offset)?;
    let members = json.members(raw)?.unwrap_or_default();
    // Take the first of repeated keys: they are reported when all are read.
    let member = |key: &str| members.iter().find(|(name, _)| name == key).map(|(_, raw)| *raw);
    let head = list_head(member("apiVersion").and_then(word), member("kind").and_then(word));
    let Some(head) = head.filter(|_| member("items").is_some_and(|items| items.get().starts_with('[')))
    else {
        let node = json.node(raw)?;
        return deliver(node, None, each).map(|()| end);
    };
    let mut rest = Vec::new();
    let mark = json.place(raw);
    for (key, raw) in members {
        let place = json.place(raw);
        let value = match json.elements(raw)? {
            Some(items) if key == "items" => {
                for (index, raw) in items.into_iter().enumerate() {
                    let item = json.node(raw).and_then(|node| deliver(node, Some(&head), each));
                    item.map_err(|fault| fault.at(index).under("items"))?;
                }
                DocumentNode { mark: place, value: Value::List(Box::default()) }
            }
            _ => json.node(raw).map_err(|fault| fault.under(&key))?,
        };
        rest.push(MapEntry { mark: place, key: key.into(), value });
    }
    DocumentNode::map(mark, rest).map(|_| end)
}

/// The text of a JSON string. Not read by [`JsonText`], which counts lines in order: this looks ahead.
fn word(raw: Raw<'_>) -> Option<Cow<'_, str>> {
    serde_json::from_str(raw.get()).ok()
}

fn yaml_documents(
    reader: &mut Reader<'_>,
    before: usize,
    each: &mut Each<'_>,
) -> Result<usize, (usize, DocumentError)> {
    let mut document = before;
    let mut filled = before;
    // An error before the next document is most likely in it: report its number.
    while reader.next_document().map_err(|fault| (document + 1, fault))? {
        document += 1;
        filled += usize::from(yaml_document(reader, each).map_err(|fault| (document, fault))?);
    }
    Ok(filled)
}

/// Reads one document. Returns false if it is empty.
fn yaml_document(reader: &mut Reader<'_>, each: &mut Each<'_>) -> Result<bool, DocumentError> {
    let mark = reader.mark()?;
    if !reader.enter_map()? {
        let node = reader.node()?;
        let empty = node.value == Value::Null;
        return if empty { Ok(false) } else { deliver(node, None, each).map(|()| true) };
    }
    let mut entries: Vec<MapEntry> = Vec::new();
    let mut taken_apart = false;
    while let Some((key, mark)) = reader.key()? {
        let head = if &*key == "items" { yaml_list_head(reader, &entries)? } else { None };
        let value = match head {
            Some(head) if reader.enter_list()? => {
                let mut index = 0;
                while reader.more()? {
                    let item = reader.node().and_then(|node| deliver(node, Some(&head), each));
                    item.map_err(|fault| fault.at(index).under("items"))?;
                    index += 1;
                }
                taken_apart = true;
                DocumentNode { mark, value: Value::List(Box::default()) }
            }
            _ => reader.node().map_err(|fault| fault.under(&key))?,
        };
        entries.push(MapEntry { mark, key, value });
    }
    let node = DocumentNode::map(mark, entries)?;
    if taken_apart { Ok(true) } else { deliver(node, None, each).map(|()| true) }
}

/// The `apiVersion` and `kind` of the list that has these `items`, if it is a list. kubectl sorts keys, so `kind` usually comes
/// after `items`: a copy of the reader reads ahead.
fn yaml_list_head(reader: &Reader<'_>, before: &[MapEntry]) -> Result<Option<Head>, DocumentError> {
    let text = |entries: &[MapEntry], key: &str| {
        find(entries, key).and_then(DocumentNode::as_str).map(|s| s.to_owned().into())
    };
    if find(before, "kind").is_some() && find(before, "apiVersion").is_some() {
        return Ok(list_head(text(before, "apiVersion"), text(before, "kind")));
    }
    let mut ahead = reader.clone();
    let mut found = before.to_vec();
    ahead.skip()?;
    while let Some((key, mark)) = ahead.key()? {
        if matches!(&*key, "kind" | "apiVersion") {
            found.push(MapEntry { mark, key, value: ahead.node()? });
        } else {
            ahead.skip()?;
        }
    }
    Ok(list_head(text(&found, "apiVersion"), text(&found, "kind")))
}

/// `None` if this is not a list.
fn list_head(api_version: Option<Cow<'_, str>>, kind: Option<Cow<'_, str>>) -> Option<Head> {
    let kind = kind?.strip_suffix("List")?.to_owned();
    Some(Head { kind, api_version: api_version.unwrap_or_default().into_owned() })
}

/// Passes on `node`, or its items if it is a list.
fn deliver(node: DocumentNode, list: Option<&Head>, each: &mut Each<'_>) -> Result<(), DocumentError> {
    let text = |key: &str| node.get(key).and_then(DocumentNode::as_str).map(Cow::Borrowed);
    let Some(head) = list_head(text("apiVersion"), text("kind")) else {
        return each(node, list.filter(|list| !list.kind.is_empty()));
    };
    // A kind whose name ends in `List` need not be a list: `AllowList`, for example.
    let only_named_so = !head.kind.is_empty();
    match node.get("items").map(|items| (items.mark, &items.value)) {
        // Go programs print null for an empty list.
        Some((_, Value::Null)) => Ok(()),
        Some((_, Value::List(_))) => items_of(node).into_iter().enumerate().try_for_each(|(index, item)| {
            deliver(item, Some(&head), each).map_err(|fault| fault.at(index).under("items"))
        }),
        _ if only_named_so => each(node, list),
        None => Err(DocumentError::new(node.mark, "missing: a List has items").under("items")),
        Some((mark, other)) => {
            Err(DocumentError::new(mark, format!("expected a list, found {other}")).under("items"))
        }
    }
}

fn items_of(list: DocumentNode) -> Box<[DocumentNode]> {
    let Value::Map(entries) = list.value else { return Box::default() };
    let items = entries.into_iter().find(|entry| &*entry.key == "items").map(|entry| entry.value.value);
    if let Some(Value::List(items)) = items { items } else { Box::default() }
}
