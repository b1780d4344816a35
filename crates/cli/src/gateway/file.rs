//! The file: YAML whose keys are the names of the settings.

use std::collections::HashMap;
use std::path::Path;

use super::sources::{Origin, Problem};
use super::table::{SETTINGS, Setting, Ways};
use super::value::{Kind, Value};
use crate::config::errors::Problems;
use crate::config::field::Field;
use crate::config::{syntax, tree};
use crate::document;

/// What a file says.
#[derive(Debug)]
pub(super) struct File {
    /// The settings that it has right.
    pub(super) values: HashMap<&'static str, (Value, Origin)>,
    /// What it has wrong.
    pub(super) problems: Vec<Problem>,
    /// The settings that it has wrong.
    pub(super) doubtful: Vec<&'static str>,
}

/// Reads the whole file. `name` is what errors call it, and `folder` is what its paths are relative to.
pub(super) fn read(text: &str, name: &str, folder: &Path) -> File {
    let (problems, mut values, mut doubtful) = (Problems::default(), HashMap::new(), Vec::new());
    match tree(text) {
        Err(fault) => problems.push(fault.mark, &fault.field(), syntax(&fault.problem)),
        Ok(root) => {
            let mut keys: Vec<&str> = SETTINGS.iter().filter_map(Setting::key).collect();
            keys.dedup();
            let section = Field::root(&root, &problems).section(&keys);
            for setting in SETTINGS {
                let Some(field) = section.as_ref().and_then(|section| section.get(setting.key()?)) else {
                    continue;
                };
                match value(setting, field, folder) {
                    Some(value) => {
                        let origin = Origin::File { name: name.to_owned(), mark: field.place().mark };
                        values.insert(setting.name, (value, origin));
                    }
                    None => doubtful.push(setting.name),
                }
            }
        }
    }
    File { values, problems: told(problems, name), doubtful }
}

/// The problems, each with its key.
fn told(problems: Problems, name: &str) -> Vec<Problem> {
    let errors = problems.into_errors(name);
    let told = errors.problems().iter().map(|problem| Problem {
        origin: Origin::File { name: name.to_owned(), mark: problem.mark },
        what: match &*problem.path {
            "" => problem.what.clone(),
            path => format!("{path}: {}", problem.what),
        },
    });
    told.collect()
}

fn value(setting: &Setting, field: &Field<'_>, folder: &Path) -> Option<Value> {
    let (kind, allowed) = (&setting.kind, setting.kind.allowed());
    if let Ways::Part { list, part } = setting.ways {
        return each(field, "a list of {cert: FILE, key: FILE}", |it| {
            let pair = it.section(&parts(list))?;
            pair.need(part, &allowed, |it| one(kind, it, folder))
        });
    }
    match field.value() {
        document::Value::List(_) if kind.is_list() => {
            each(field, format_args!("{allowed}, or a list of these"), |it| one(kind, it, folder))
        }
        document::Value::List(_) if *kind == Kind::Networks => networks(field, folder),
        _ if kind.is_list() => {
            let text = field.text(&allowed)?;
            let values: Result<_, String> =
                text.split(',').map(|text| kind.parse(text.trim(), folder)).collect();
            values.map_or_else(|allowed| field.refuse(allowed), |values| Some(Value::List(values)))
        }
        _ => one(kind, field, folder),
    }
}

/// The keys of the objects in `list`.
fn parts(list: &str) -> Vec<&'static str> {
    let part = |setting: &Setting| match setting.ways {
        Ways::Part { list: of, part } if of == list => Some(part),
        _ => None,
    };
    SETTINGS.iter().filter_map(part).collect()
}

fn one(kind: &Kind, field: &Field<'_>, folder: &Path) -> Option<Value> {
    let text = field.text(kind.allowed())?;
    kind.parse(text, folder).map_or_else(|allowed| field.refuse(allowed), Some)
}

/// All elements, or none if one of them is wrong.
fn each<'n>(
    field: &Field<'n>,
    allowed: impl std::fmt::Display,
    read: impl Fn(&Field<'n>) -> Option<Value>,
) -> Option<Value> {
    // To the end, also after the first bad one.
    let all: Vec<Option<Value>> = field.items(allowed)?.iter().map(read).collect();
    all.into_iter().collect::<Option<_>>().map(Value::List)
}

/// A list of networks is what is written with commas elsewhere.
fn networks(field: &Field<'_>, folder: &Path) -> Option<Value> {
    let kind = Kind::Networks;
    let list = each(field, kind.allowed(), |it| one(&kind, it, folder))?;
    kind.parse(&list.to_string(), folder).map_or_else(|allowed| field.refuse(allowed), Some)
}
