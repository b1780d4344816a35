//! Reads Kubernetes objects from a file or stdin, one at a time. The text is in memory once; of the objects, only what the
//! caller keeps.

mod documents;

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use crate::CommandError;
use documents::Each;
pub(crate) use documents::Head;

/// The input text, and its name for errors.
#[derive(Debug)]
pub(crate) struct InputSource {
    name: String,
    text: String,
}

impl InputSource {
    /// Reads the file, or stdin for `-`.
    pub(crate) fn load(
        file: &Path,
        stdin: &mut dyn Read,
        note: &mut dyn FnMut(&'static str),
    ) -> Result<Self, CommandError> {
        if file == Path::new("-") {
            if io::stdin().is_terminal() {
                note("reading objects from the terminal; end with Ctrl-D, or give -f FILE");
            }
            return Self::new("<stdin>".to_owned(), stdin);
        }
        let name = printable(&file.display().to_string());
        if file.is_dir() {
            return Err(CommandError::Input(format!(
                "{name} is a directory: give a file, or - for standard input"
            )));
        }
        match File::open(file) {
            Ok(mut open) => Self::new(name, &mut open),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(CommandError::Input(format!(
                "{name}: no such file: check the path, or use -f - to read from a pipe"
            ))),
            Err(error) => Err(CommandError::Io { what: format!("cannot open {name}"), error }),
        }
    }

    fn new(name: String, from: &mut dyn Read) -> Result<Self, CommandError> {
        let mut bytes = Vec::new();
        if let Err(error) = from.read_to_end(&mut bytes) {
            return Err(CommandError::Io { what: format!("cannot read {name}"), error });
        }
        if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
            let hint = "it looks like UTF-16, which PowerShell's > writes: save it as UTF-8";
            return Err(CommandError::Input(format!("{name}, line 1: not UTF-8 text: {hint}")));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Self { name, text }),
            Err(error) => {
                let good = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
                let line = 1 + good.split(|byte| *byte == b'\n').skip(1).count();
                let byte = error.as_bytes().get(good.len()).copied().unwrap_or_default();
                let hint = "expected JSON or YAML, as `kubectl get … -o json` prints it";
                Err(CommandError::Input(format!(
                    "{name}, line {line}: not UTF-8 text (byte 0x{byte:02x}): {hint}"
                )))
            }
        }
    }

    /// True if the first object is JSON.
    pub(crate) fn is_json(&self) -> bool {
        documents::is_json(self.text.trim_start_matches('\u{feff}').trim_start())
    }

    /// Calls `each` for every object, in order. An input without objects is an error, which suggests the command `example`.
    pub(crate) fn walk(&self, example: &str, each: &mut Each<'_>) -> Result<(), CommandError> {
        let text = self.text.strip_prefix('\u{feff}').unwrap_or(&self.text);
        match documents::walk(text, each) {
            Ok(0) => Err(CommandError::Input(format!(
                "{}: no objects in it: expected Kubernetes objects as JSON or YAML, for example from `{example}`",
                self.name
            ))),
            Ok(_) => Ok(()),
            Err((document, fault)) => {
                Err(CommandError::Input(printable(&format!("{}, document {document}, {fault}", self.name))))
            }
        }
    }
}

/// `text` without control characters: a name in a file must not control the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}
