//! Collects the problems of a file, and reports them in the order of its lines.

use std::cell::RefCell;
use std::fmt;

use crate::document::Mark;

/// How many problems are reported; further ones are only counted.
pub const SHOWN: usize = 50;

/// One problem.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileProblem {
    /// Its line and column.
    pub mark: Mark,
    /// Its key: `apps.hello.scale.max`. Empty for the file as a whole.
    pub path: String,
    /// What is wrong, and what is allowed.
    pub what: String,
}

/// All problems of a file: at least one, in the order of lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errors {
    file: String,
    problems: Vec<FileProblem>,
    more: usize,
}

impl Errors {
    /// The first [`SHOWN`] problems.
    pub fn problems(&self) -> &[FileProblem] {
        &self.problems
    }

    /// The number of problems, including those that are not shown.
    pub fn count(&self) -> usize {
        self.problems.len() + self.more
    }
}

/// One line per problem, like `rouse.yaml:12:9: apps.hello.scale.max: 0 is not allowed: a whole number from 1 to 1000`, and
/// the next step.
impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = &self.file;
        for FileProblem { mark, path, what } in &self.problems {
            let colon = if path.is_empty() { "" } else { ": " };
            writeln!(f, "{file}:{}:{}: {path}{colon}{what}", mark.line, mark.column)?;
        }
        if self.more > 0 {
            writeln!(f, "and {} more", self.more)?;
        }
        match self.count() {
            1 => write!(f, "1 error in {file}: correct it and try again"),
            count => write!(f, "{count} errors in {file}: correct them and try again"),
        }
    }
}

impl std::error::Error for Errors {}

/// The problems found so far. Shared by all readers of parts of the file.
#[derive(Debug, Default)]
pub struct FileProblems(RefCell<Vec<FileProblem>>);

impl FileProblems {
    /// Adds a problem at `mark`, with the key `path`.
    pub fn push(&self, mark: Mark, path: &str, what: impl Into<String>) {
        self.0.borrow_mut().push(FileProblem { mark, path: path.to_owned(), what: what.into() });
    }

    /// True if there is no problem so far.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// The error to report for `file`.
    pub fn into_errors(self, file: &str) -> Errors {
        let mut problems = self.0.into_inner();
        problems.sort();
        let more = problems.len().saturating_sub(SHOWN);
        problems.truncate(SHOWN);
        Errors { file: file.to_owned(), problems, more }
    }
}
