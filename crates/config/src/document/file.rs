//! Reads a YAML file that people write: exactly one document, with hints about common mistakes.

use super::yaml::Reader;
use super::{DocumentError, DocumentNode, Mark, Value};

/// The tree of the only document in `text`; an empty text is `null`.
pub fn tree(text: &str) -> Result<DocumentNode, DocumentError> {
    let mut reader = Reader::literal(text);
    if !reader.next_document()? {
        return Ok(DocumentNode { mark: Mark::START, value: Value::Null });
    }
    let root = reader.node()?;
    if reader.next_document()? {
        return Err(DocumentError::new(reader.mark()?, "a second document (after ---): keep one"));
    }
    Ok(root)
}

/// A syntax error with a hint. To YAML, a host that starts with a star is an alias, which is a common mistake.
pub fn syntax(problem: &str) -> String {
    let hint = if problem.contains("unknown anchor") {
        ": put a value that begins with * in quotes, as \"*\""
    } else {
        ""
    };
    format!("{problem}{hint}")
}
