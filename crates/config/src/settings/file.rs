//! Reads the file with settings: YAML whose keys are the names of the settings.

use std::collections::HashMap;
use std::path::Path;

use super::read::SettingsTable;
use super::setting::{AllowedSources, AnySetting, SettingValue};
use super::sources::{Origin, Problem};
use crate::document;
use crate::document::file::{syntax, tree};
use crate::errors;
use crate::field::Field;

/// The settings of a file.
#[derive(Debug)]
pub(super) struct FileValues {
    /// The valid settings, by name.
    pub(super) values: HashMap<&'static str, (SettingValue, Origin)>,
    /// The problems.
    pub(super) problems: Vec<Problem>,
    /// The settings with a wrong value.
    pub(super) uncertain: Vec<&'static str>,
}

/// Reads the whole file. `name` is what errors call it, and `folder` is what its paths are relative to.
pub(super) fn read(table: &'static SettingsTable, text: &str, name: &str, folder: &Path) -> FileValues {
    let (problems, mut values, mut uncertain) = (errors::FileProblems::default(), HashMap::new(), Vec::new());
    match tree(text) {
        Err(fault) => problems.push(fault.mark, &fault.field(), syntax(&fault.problem)),
        Ok(root) => {
            let mut keys: Vec<&str> = table.settings().filter_map(AnySetting::key).collect();
            keys.dedup();
            let section = Field::root(&root, &problems).section(&keys);
            for setting in table.settings() {
                let Some(field) = section.as_ref().and_then(|section| section.get(setting.key()?)) else {
                    continue;
                };
                match value(table, setting, field, folder) {
                    Some(value) => {
                        let origin = Origin::File { name: name.to_owned(), mark: field.place().mark };
                        values.insert(setting.name(), (value, origin));
                    }
                    None => uncertain.push(setting.name()),
                }
            }
        }
    }
    FileValues { values, problems: with_keys(problems, name), uncertain }
}

/// The problems, each with its key.
fn with_keys(problems: errors::FileProblems, name: &str) -> Vec<Problem> {
    let errors = problems.into_errors(name);
    let all = errors.problems().iter().map(|problem| Problem {
        origin: Origin::File { name: name.to_owned(), mark: problem.mark },
        what: match &*problem.path {
            "" => problem.what.clone(),
            path => format!("{path}: {}", problem.what),
        },
    });
    all.collect()
}

fn value(
    table: &'static SettingsTable,
    setting: &'static dyn AnySetting,
    field: &Field<'_>,
    folder: &Path,
) -> Option<SettingValue> {
    let allowed = setting.allowed();
    let all = |parts: Vec<SettingValue>| setting.concat(&parts);
    if let AllowedSources::Part { list, part } = setting.places() {
        let each = each(field, "a list of {cert: FILE, key: FILE}", |it| {
            let pair = it.section(&parts(table, list))?;
            pair.need(part, &allowed, |it| one(setting, it, folder))
        });
        return each.map(all);
    }
    match field.value() {
        document::Value::List(_) if setting.is_list() => {
            each(field, format_args!("{allowed}, or a list of these"), |it| one(setting, it, folder)).map(all)
        }
        document::Value::List(_) if setting.is_joined() => joined(setting, field, folder),
        _ if setting.is_list() => {
            let text = field.text(&allowed)?;
            let values: Result<_, String> =
                text.split(',').map(|text| setting.parse(text.trim(), folder)).collect();
            values.map_or_else(|allowed| field.refuse(allowed), |values| Some(all(values)))
        }
        _ => one(setting, field, folder),
    }
}

/// The keys of the objects in `list`.
fn parts(table: &'static SettingsTable, list: &str) -> Vec<&'static str> {
    let part = |setting: &dyn AnySetting| match setting.places() {
        AllowedSources::Part { list: of, part } if of == list => Some(part),
        _ => None,
    };
    table.settings().filter_map(part).collect()
}

fn one(setting: &'static dyn AnySetting, field: &Field<'_>, folder: &Path) -> Option<SettingValue> {
    let text = field.text(setting.allowed())?;
    setting.parse(text, folder).map_or_else(|allowed| field.refuse(allowed), Some)
}

/// All elements, or none if one of them is wrong.
fn each<'n>(
    field: &Field<'n>,
    allowed: impl std::fmt::Display,
    read: impl Fn(&Field<'n>) -> Option<SettingValue>,
) -> Option<Vec<SettingValue>> {
    // Read all elements, also after a wrong one, to report every problem.
    let all: Vec<Option<SettingValue>> = field.items(allowed)?.iter().map(read).collect();
    all.into_iter().collect()
}

/// A list in the file for a setting that is one text with commas elsewhere.
fn joined(setting: &'static dyn AnySetting, field: &Field<'_>, folder: &Path) -> Option<SettingValue> {
    let list = each(field, setting.allowed(), |it| one(setting, it, folder))?;
    let texts: Vec<String> = list.into_iter().filter_map(|value| value.text).collect();
    setting.parse(&texts.join(","), folder).map_or_else(|allowed| field.refuse(allowed), Some)
}
