//! Resolves settings from flags, environment, aliases and file (in this order), and reports all errors at once.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use super::args::{Flags, HasTable};
use super::file::{self, FileValues};
use super::setting::{AnySetting, Group, Setting, SettingValue, Translated};
use super::sources::{Environment, Origin, Problem, Problems, SettingWarning};
use crate::document;
use crate::field::{closest, shown};

/// The settings of one command.
#[derive(Debug)]
pub struct SettingsTable {
    /// The settings, under their headings. Several tables may share a group.
    pub groups: &'static [&'static Group],
    /// Prefixes of variables of another program, which are reported if they have no effect.
    pub foreign: &'static [&'static str],
    /// Why a foreign variable that is not an alias has no effect; `None` if the other program does not have it either.
    pub without_effect: fn(&str) -> Option<&'static str>,
    /// Variables `ROUSE_…` that are read elsewhere.
    pub other_variables: &'static [&'static str],
}

impl SettingsTable {
    /// A table without variables of other programs.
    pub const fn new(groups: &'static [&'static Group]) -> Self {
        Self { groups, foreign: &[], without_effect: |_| None, other_variables: &[] }
    }

    /// All settings, in the order in which they are shown.
    pub fn settings(&self) -> impl Iterator<Item = &'static dyn AnySetting> {
        self.groups.iter().flat_map(|group| group.settings).copied()
    }

    /// True if `name` is a variable of another program that sets one of the settings.
    pub fn is_alias(&self, name: &str) -> bool {
        self.settings().flat_map(AnySetting::aliases).any(|alias| alias.name == name)
    }
}

/// A file with settings, and the flag or variable that names it.
#[derive(Debug)]
pub struct ConfigFile {
    /// The file.
    pub path: PathBuf,
    /// The flag or variable that names it.
    pub named_by: Origin,
}

/// One resolved setting.
#[derive(Debug, Clone)]
pub struct FoundSetting {
    /// The setting.
    pub setting: &'static dyn AnySetting,
    /// Its value.
    pub value: SettingValue,
    /// Where the value comes from.
    pub origin: Origin,
}

/// The values of all settings of a table.
#[derive(Debug, Clone)]
pub struct Values(Vec<FoundSetting>);

impl Values {
    /// The value of `setting`. A setting that is not in the table has its default.
    pub fn get<T: Clone + Send + Sync>(&self, setting: &'static Setting<T>) -> T {
        let value = self.found(setting).and_then(|found| found.value.value.downcast_ref::<T>());
        value.cloned().unwrap_or_else(|| setting.default_value())
    }

    /// Where the value of `setting` comes from.
    pub fn origin(&self, setting: &'static dyn AnySetting) -> Origin {
        self.found(setting).map_or(Origin::Default, |found| found.origin.clone())
    }

    /// The origin of the first of `settings` that is not a default: a default is not what the user has to change.
    pub fn first_origin(&self, settings: &[&'static dyn AnySetting]) -> Origin {
        let mut origins = settings.iter().map(|setting| self.origin(*setting));
        origins.find(|origin| *origin != Origin::Default).unwrap_or(Origin::Default)
    }

    /// Every setting, in the order of the table.
    pub fn all(&self) -> &[FoundSetting] {
        &self.0
    }

    /// Finds a setting by its address: two statics never share one.
    fn found(&self, setting: &dyn AnySetting) -> Option<&FoundSetting> {
        self.0.iter().find(|found| std::ptr::addr_eq(found.setting, setting))
    }
}

/// The values of all settings of the command `C`, and the problems and warnings so far. `open` reads the file.
pub fn read<C: HasTable>(
    flags: &Flags<C>,
    env: &Environment,
    file: Option<ConfigFile>,
    open: impl FnOnce(&Path) -> io::Result<String>,
) -> (Values, SettingsDiagnostics) {
    let (table, mut reading) = (C::TABLE, SettingsDiagnostics::default());
    let file = file.and_then(|file| reading.open(table, &file, open));
    let sources = Sources { flags, env, file: file.as_ref() };
    let values = table.settings().map(|setting| sources.find(setting, &mut reading)).collect();
    reading.unknown_variables(table, env);
    (Values(values), reading)
}

/// The problems and warnings found so far.
#[derive(Debug, Default)]
pub struct SettingsDiagnostics {
    problems: Vec<Problem>,
    warnings: Vec<SettingWarning>,
    /// Settings with a wrong value in some source, so that their value is not known.
    uncertain: HashSet<&'static str>,
}

impl SettingsDiagnostics {
    /// Reports a problem.
    pub fn problem(&mut self, origin: Origin, what: impl Into<String>) {
        self.problems.push(Problem { origin, what: what.into() });
    }

    /// Reports a warning.
    pub fn warn(&mut self, origin: Origin, what: impl Into<String>) {
        self.warnings.push(SettingWarning { origin, what: what.into() });
    }

    /// True if `settings` are valid in all sources. Otherwise a check of their combination would mislead.
    pub fn is_certain_of(&self, settings: &[&'static dyn AnySetting]) -> bool {
        settings.iter().all(|setting| !self.uncertain.contains(setting.name()))
    }

    /// The `values` with all warnings, or all problems.
    pub fn finish(mut self, values: Values) -> Result<(Values, Vec<SettingWarning>), Problems> {
        let values = Problems::none_in(self.problems, values)?;
        self.warnings.sort();
        self.warnings.dedup();
        Ok((values, self.warnings))
    }

    fn uncertain(&mut self, setting: &'static dyn AnySetting, origin: Origin, what: String) {
        self.uncertain.insert(setting.name());
        self.problem(origin, what);
    }

    fn open(
        &mut self,
        table: &'static SettingsTable,
        file: &ConfigFile,
        open: impl FnOnce(&Path) -> io::Result<String>,
    ) -> Option<FileValues> {
        let name = file.path.display().to_string();
        let text = match open(&file.path) {
            Ok(text) => text,
            Err(error) => {
                self.problem(file.named_by.clone(), format!("cannot read {name}: {error}"));
                return None;
            }
        };
        let mut read = file::read(table, &text, &name, file.path.parent().unwrap_or(Path::new("")));
        self.problems.append(&mut read.problems);
        self.uncertain.extend(&read.uncertain);
        Some(read)
    }

    /// Parses `texts` as the value of `setting`; relative paths are relative to the process's folder. Errors quote `written` if
    /// it is given.
    fn parse(
        &mut self,
        setting: &'static dyn AnySetting,
        texts: &[&str],
        origin: &Origin,
        written: Option<&str>,
    ) -> Option<SettingValue> {
        let mut one = |text: &str| match setting.parse(text, Path::new("")) {
            Ok(value) => Some(value),
            Err(allowed) => {
                self.uncertain(setting, origin.clone(), refusal(written.unwrap_or(text), &allowed));
                None
            }
        };
        if !setting.is_list() {
            return texts.first().copied().and_then(one);
        }
        // Parse all elements, also after a wrong one, to report every problem.
        let all: Vec<_> =
            texts.iter().flat_map(|text| text.split(',')).map(|text| one(text.trim())).collect();
        Some(setting.concat(&all.into_iter().collect::<Option<Vec<_>>>()?))
    }

    /// Warns about variables without effect: they are mistakes, but do not stop the command.
    fn unknown_variables(&mut self, table: &'static SettingsTable, env: &Environment) {
        let ours: Vec<String> = table.settings().filter_map(AnySetting::variable).collect();
        let ours: Vec<&str> =
            ours.iter().map(String::as_str).chain(table.other_variables.iter().copied()).collect();
        for name in env.names("ROUSE_").filter(|name| !ours.contains(name)) {
            let meant =
                closest(name, &ours).map_or(String::new(), |meant| format!(": did you mean {meant}?"));
            self.warn(Origin::Variable(name.to_owned()), format!("unknown variable{meant}"));
        }
        let foreign = table.foreign.iter().flat_map(|prefix| env.names(prefix));
        for name in foreign.filter(|name| !table.is_alias(name)) {
            let why = (table.without_effect)(name).unwrap_or("unknown variable");
            self.warn(Origin::Variable(name.to_owned()), format!("this variable has no effect: {why}"));
        }
    }
}

/// `x is not allowed: true or false`, as errors about the file have it.
fn refusal(text: &str, allowed: &str) -> String {
    format!("{} is not allowed: {allowed}", shown(&document::Value::Text(text.into())))
}

/// The sources of a setting.
struct Sources<'s, C> {
    flags: &'s Flags<C>,
    env: &'s Environment,
    file: Option<&'s FileValues>,
}

impl<C> Sources<'_, C> {
    fn find(&self, setting: &'static dyn AnySetting, reading: &mut SettingsDiagnostics) -> FoundSetting {
        let by_precedence = [
            self.flag(setting, reading),
            self.variable(setting, reading),
            self.implied(setting),
            self.alias(setting, reading),
            self.file.and_then(|file| file.values.get(setting.name()).cloned()),
        ];
        let default = || (setting.stored_default(), Origin::Default);
        let (value, origin) = by_precedence.into_iter().flatten().next().unwrap_or_else(default);
        FoundSetting { setting, value, origin }
    }

    fn flag(
        &self,
        setting: &'static dyn AnySetting,
        reading: &mut SettingsDiagnostics,
    ) -> Option<(SettingValue, Origin)> {
        let origin = Origin::Flag(setting.flag()?);
        let texts: Vec<&str> = self.flags.given(setting.name()).collect();
        if texts.len() > 1 && !setting.is_list() {
            reading.uncertain(setting, origin, format!("given {} times: keep one", texts.len()));
            return None;
        }
        (!texts.is_empty()).then_some(())?;
        reading.parse(setting, &texts, &origin, None).map(|value| (value, origin))
    }

    fn variable(
        &self,
        setting: &'static dyn AnySetting,
        reading: &mut SettingsDiagnostics,
    ) -> Option<(SettingValue, Origin)> {
        let name = setting.variable()?;
        let text = self.env.get(&name)?;
        let origin = Origin::Variable(name);
        reading.parse(setting, &[text], &origin, None).map(|value| (value, origin))
    }

    /// A switch that the presence of a variable turns on.
    fn implied(&self, setting: &'static dyn AnySetting) -> Option<(SettingValue, Origin)> {
        let variable = setting.implied_by(self.env)?;
        let value = setting.parse("true", Path::new("")).ok()?;
        Some((value, Origin::Variable(variable.to_owned())))
    }

    /// The value of the first alias that sets it. Reads all aliases, to report every problem.
    fn alias(
        &self,
        setting: &'static dyn AnySetting,
        reading: &mut SettingsDiagnostics,
    ) -> Option<(SettingValue, Origin)> {
        let mut first = None;
        for alias in setting.aliases() {
            let Some(text) = self.env.get(alias.name) else { continue };
            let origin = Origin::Variable(alias.name.to_owned());
            if let Some(successor) = alias.successor {
                reading.warn(origin.clone(), format!("this variable is deprecated: use {successor}"));
            }
            let translated = match (alias.translate)(text, self.env) {
                Translated::NotSet => None,
                Translated::Value(ours) => Some(ours),
                Translated::ValueWithWarning(ours, what) => {
                    reading.warn(origin.clone(), what);
                    Some(ours)
                }
                Translated::Unsupported(why) => {
                    reading.warn(origin.clone(), format!("{text} is ignored: {why}"));
                    None
                }
                Translated::Invalid(allowed) => {
                    reading.uncertain(setting, origin.clone(), refusal(text, &allowed));
                    None
                }
            };
            let value = translated.and_then(|ours| reading.parse(setting, &[&ours], &origin, Some(text)));
            first = first.or_else(|| value.map(|value| (value, origin)));
        }
        first
    }
}
