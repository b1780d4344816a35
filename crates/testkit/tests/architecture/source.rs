//! Reads the production sources of one crate: its files, the imports in them, and the length of their functions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which room imports which other rooms.
pub(crate) type Imports = BTreeMap<String, BTreeSet<String>>;

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// The names of all crates below `crates/`, except for this one, which only tests use.
pub(crate) fn crates() -> Vec<String> {
    let folders = fs::read_dir(repository().join("crates")).unwrap();
    let names = folders.map(|folder| folder.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "testkit").collect();
    names.sort();
    names
}

/// One production file, without its tests.
pub(crate) struct File {
    /// Relative to the root of the repository.
    pub(crate) path: String,
    /// The module that the file is, from the root of its crate.
    module: Vec<String>,
    lines: Vec<String>,
}

/// The production files of a crate.
pub(crate) fn files(name: &str) -> Vec<File> {
    let source = repository().join("crates").join(name).join("src");
    let mut files = Vec::new();
    read_folder(&source, &[], &mut files);
    assert!(!files.is_empty(), "{name} has no sources");
    files
}

fn read_folder(folder: &Path, module: &[String], files: &mut Vec<File>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut module = module.to_vec();
        if !matches!(name.as_str(), "lib" | "main" | "mod") {
            module.push(name.clone());
        }
        if path.is_dir() {
            read_folder(&path, &module, files);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !matches!(name.as_str(), "tests" | "models")
        {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().take_while(|line| *line != "#[cfg(test)]").map(str::to_owned).collect();
            let path = path.strip_prefix(repository()).unwrap().to_str().unwrap().to_owned();
            files.push(File { path, module, lines });
        }
    }
}

/// The imports between the rooms of a crate: its top-level modules. `lib.rs` and `main.rs` belong to no room.
pub(crate) fn imports(files: &[File]) -> Imports {
    let rooms: BTreeSet<&String> = files.iter().filter_map(|file| file.module.first()).collect();
    let mut imports: Imports = rooms.iter().map(|room| ((*room).clone(), BTreeSet::new())).collect();
    for file in files {
        let Some(room) = file.module.first() else { continue };
        let named = file.paths().into_iter().filter_map(|path| file.room_of(&path));
        let others = named.filter(|other| other != room && rooms.contains(other));
        imports.get_mut(room).unwrap().extend(others);
    }
    imports
}

impl File {
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The room that the file belongs to; `None` for `lib.rs` and `main.rs`.
    pub(crate) fn room(&self) -> Option<&str> {
        self.module.first().map(String::as_str)
    }

    /// The lines of code that have one of `words`, with their place. Comments do not count.
    pub(crate) fn lines_with(&self, words: &[&str]) -> Vec<String> {
        let has_word = |line: &str| {
            let code = line.split("//").next().unwrap_or_default();
            code.split(|letter: char| !(letter.is_alphanumeric() || letter == '_'))
                .any(|word| words.contains(&word))
        };
        let lines = self.lines.iter().enumerate().filter(|(_, line)| has_word(line));
        lines.map(|(number, line)| format!("{}:{}: {}", self.path, number + 1, line.trim())).collect()
    }

    /// The names of the types that the file declares for other rooms or crates.
    pub(crate) fn public_types(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().filter_map(|line| {
            let line = line.trim_start();
            let line = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) "))?;
            let (keyword, rest) = line.split_once(' ')?;
            let is_type = matches!(keyword, "struct" | "enum" | "trait" | "type" | "union");
            is_type.then(|| rest.split(|letter: char| !letter.is_alphanumeric()).next()).flatten()
        })
    }

    /// The functions that have more than `most` lines, from the line of `fn` to the closing brace, by name.
    pub(crate) fn functions_over(&self, most: usize) -> Vec<String> {
        let mut long = Vec::new();
        for (start, line) in self.lines.iter().enumerate() {
            let Some(name) = function_name(line) else { continue };
            let indent = &line[..line.len() - line.trim_start().len()];
            // What a trait declares has no body.
            let signature = self.lines[start..].iter().find(|line| line.ends_with([';', '{', '}']));
            if signature.is_some_and(|line| line.ends_with(';')) {
                continue;
            }
            let end = format!("{indent}}}");
            let Some(length) = self.lines[start..].iter().position(|line| *line == end) else { continue };
            if !line.ends_with('}') && length + 1 > most {
                long.push(format!("{}: {name}", self.path));
            }
        }
        long
    }

    /// Every path in the code that begins with `crate::` or `super::`, with the groups of `use` written out.
    fn paths(&self) -> Vec<String> {
        let code: Vec<&str> =
            self.lines.iter().map(|line| line.split("//").next().unwrap_or_default()).collect();
        let code = code.join("\n");
        let mut paths = Vec::new();
        for start in ["crate::", "super::"] {
            for (at, _) in code.match_indices(start) {
                let before = code[..at].chars().next_back();
                if !before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_' || letter == ':') {
                    expand("", &code[at..], &mut paths);
                }
            }
        }
        paths
    }

    /// The room that a path leads to, if it stays in the crate.
    fn room_of(&self, path: &str) -> Option<String> {
        let mut parts = path.split("::").peekable();
        let mut module = match parts.next()? {
            "crate" => Vec::new(),
            _ => self.module[..self.module.len().checked_sub(1)?].to_vec(),
        };
        while parts.next_if_eq(&"super").is_some() {
            module.pop();
        }
        module.extend(parts.map(str::to_owned));
        module.into_iter().next()
    }
}

/// Adds the path at the start of `code` to `paths`, each member of a group on its own. Returns how much it has read.
fn expand(prefix: &str, code: &str, paths: &mut Vec<String>) -> usize {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let length = code.find(|letter: char| !is_part(letter)).unwrap_or(code.len());
    let path = format!("{prefix}{}", &code[..length]);
    if !(path.ends_with("::") && code[length..].starts_with('{')) {
        paths.push(path);
        return length;
    }
    let mut at = length + 1;
    loop {
        at += code[at..].len() - code[at..].trim_start_matches([' ', '\n', ',']).len();
        if code[at..].is_empty() || code[at..].starts_with('}') {
            return at + 1;
        }
        let read = expand(&path, &code[at..], paths);
        at += read.max(1);
    }
}

fn function_name(line: &str) -> Option<&str> {
    let words = line.trim_start();
    let (before, after) = words.split_once("fn ")?;
    let is_modifier = |word: &str| {
        matches!(word, "pub" | "async" | "const" | "unsafe" | "extern") || word.starts_with("pub(")
    };
    if !before.split_whitespace().all(is_modifier) {
        return None;
    }
    after.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).next()
}
