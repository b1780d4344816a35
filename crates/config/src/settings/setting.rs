//! The definition of one typed setting: name, default, help, aliases, and where it can be set.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::arity::SettingFormat;
use super::sources::Environment;

/// One setting of type `T`, a static that the table of a command lists.
pub struct Setting<T: 'static> {
    name: &'static str,
    format: &'static dyn SettingFormat<T>,
    default: Fallback<T>,
    help: &'static str,
    places: AllowedSources,
    aliases: &'static [Alias],
    implied: Option<fn(&Environment) -> Option<&str>>,
    on_this_machine: Option<fn() -> usize>,
}

/// The value of a setting that no source sets.
#[derive(Clone, Copy)]
pub enum Fallback<T: 'static> {
    /// This value.
    Is(fn() -> T),
    /// Unset (`None`, or an empty list), with the text that explains it.
    Unset(&'static str, fn() -> T),
}

/// Where a setting can be set, in addition to its aliases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowedSources {
    /// Flag, variable and file.
    All,
    /// Flag and variable; in the file it is the key `part` of each object of the list `list`.
    Part {
        /// The file's key.
        list: &'static str,
        /// The key in each object.
        part: &'static str,
    },
    /// Only its aliases.
    AliasesOnly,
}

/// A variable of another program that means one of our settings.
#[derive(Debug)]
pub struct Alias {
    /// The variable.
    pub name: &'static str,
    /// The variable that the other program itself recommends instead.
    pub successor: Option<&'static str>,
    /// Translates a value; the second argument has all variables.
    pub translate: fn(&str, &Environment) -> Translated,
}

/// The result of translating a foreign variable into one of our settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Translated {
    /// This value, written as for our own flag.
    Value(String),
    /// This value, and a warning for the operator.
    ValueWithWarning(String, String),
    /// The variable does not set it.
    NotSet,
    /// The value is not supported here, with the reason.
    Unsupported(String),
    /// The value is not allowed, with what is allowed.
    Invalid(String),
}

impl<T> Setting<T> {
    /// A setting that always has a value.
    pub const fn new(
        name: &'static str,
        format: &'static dyn SettingFormat<T>,
        default: fn() -> T,
        help: &'static str,
    ) -> Self {
        Self::with(name, format, Fallback::Is(default), help)
    }

    const fn with(
        name: &'static str,
        format: &'static dyn SettingFormat<T>,
        default: Fallback<T>,
        help: &'static str,
    ) -> Self {
        let (places, aliases) = (AllowedSources::All, &[]);
        Self { name, format, default, help, places, aliases, implied: None, on_this_machine: None }
    }

    /// Variables of another program that also set it; the first that sets it applies.
    #[must_use]
    pub const fn aliases(mut self, aliases: &'static [Alias]) -> Self {
        self.aliases = aliases;
        self
    }

    /// Where it can be set.
    #[must_use]
    pub const fn places(mut self, places: AllowedSources) -> Self {
        self.places = places;
        self
    }

    /// The number that an unset value means on this machine, for `--check-config`.
    #[must_use]
    pub const fn on_this_machine(mut self, amount: fn() -> usize) -> Self {
        self.on_this_machine = Some(amount);
        self
    }

    /// The value when no source sets it.
    pub fn default_value(&self) -> T {
        match self.default {
            Fallback::Is(value) | Fallback::Unset(_, value) => value(),
        }
    }
}

impl<T> Setting<Option<T>> {
    /// A setting that may be unset; the text `unset` explains that case.
    pub const fn optional(
        name: &'static str,
        format: &'static dyn SettingFormat<Option<T>>,
        unset: &'static str,
        help: &'static str,
    ) -> Self {
        Self::with(name, format, Fallback::Unset(unset, || None), help)
    }
}

impl<T> Setting<Vec<T>> {
    /// A list that is empty by default; the text `unset` explains that case.
    pub const fn list(
        name: &'static str,
        format: &'static dyn SettingFormat<Vec<T>>,
        unset: &'static str,
        help: &'static str,
    ) -> Self {
        Self::with(name, format, Fallback::Unset(unset, Vec::new), help)
    }
}

impl Setting<bool> {
    /// Variables whose presence turns it on: the function finds the first one.
    #[must_use]
    pub const fn implied_by(mut self, variable: fn(&Environment) -> Option<&str>) -> Self {
        self.implied = Some(variable);
        self
    }
}

impl<T> fmt::Debug for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Setting").field(&self.name).finish()
    }
}

/// Settings under one heading of `--help` and of the documentation.
#[derive(Debug)]
pub struct Group {
    /// The heading.
    pub title: &'static str,
    /// The settings, in the order in which they are shown.
    pub settings: &'static [&'static dyn AnySetting],
}

/// The value of any setting, and how it is shown.
#[derive(Clone)]
pub struct SettingValue {
    pub(super) value: Arc<dyn Any + Send + Sync>,
    /// As it can be written on a command line; `None` if it is unset.
    pub text: Option<String>,
    /// For `--check-config -o json`.
    pub json: serde_json::Value,
    /// The files and folders that it names.
    pub paths: Vec<PathBuf>,
}

impl fmt::Debug for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.as_deref().unwrap_or("unset"))
    }
}

/// A setting of any type.
pub trait AnySetting: fmt::Debug + Sync {
    /// `max-hold`: the flag without its dashes, and the file's key.
    fn name(&self) -> &'static str;
    /// What it does.
    fn help(&self) -> &'static str;
    /// Where it can be set.
    fn places(&self) -> AllowedSources;
    /// Variables of other programs that also set it.
    fn aliases(&self) -> &'static [Alias];
    /// The placeholder of the value in help texts.
    fn placeholder(&self) -> &'static str;
    /// The allowed values, for errors.
    fn allowed(&self) -> String;
    /// True if it can be given several times.
    fn is_list(&self) -> bool;
    /// True if it is one text elsewhere but may be a list in a file.
    fn is_joined(&self) -> bool;
    /// True if its flag may come without a value.
    fn is_switch(&self) -> bool;
    /// The default for help: a value, or the text that explains unset.
    fn default_text(&self) -> String;
    /// True if the default is a value.
    fn has_default(&self) -> bool;
    /// The number that an unset value means on this machine.
    fn amount_on_this_machine(&self) -> Option<usize>;
    /// The variable whose presence turns it on, if it is set.
    fn implied_by<'e>(&self, env: &'e Environment) -> Option<&'e str>;
    /// The default.
    fn stored_default(&self) -> SettingValue;
    /// Parses one value; the error is the text of what is allowed. Paths are relative to `folder`.
    fn parse(&self, text: &str, folder: &Path) -> Result<SettingValue, String>;
    /// Several values of a list as one; the last of several others.
    fn concat(&self, parts: &[SettingValue]) -> SettingValue;

    /// `--max-hold`.
    fn flag(&self) -> Option<String> {
        (self.places() != AllowedSources::AliasesOnly).then(|| format!("--{}", self.name()))
    }

    /// `ROUSE_MAX_HOLD`.
    fn variable(&self) -> Option<String> {
        let name = || format!("ROUSE_{}", self.name().replace('-', "_").to_uppercase());
        (self.places() != AllowedSources::AliasesOnly).then(name)
    }

    /// Its key at the top of the file.
    fn key(&self) -> Option<&'static str> {
        match self.places() {
            AllowedSources::All => Some(self.name()),
            AllowedSources::Part { list, .. } => Some(list),
            AllowedSources::AliasesOnly => None,
        }
    }
}

impl<T: Clone + Send + Sync + 'static> Setting<T> {
    fn store(&self, value: T) -> SettingValue {
        let (text, json, paths) =
            (self.format.show(&value), self.format.json(&value), self.format.paths(&value));
        SettingValue { value: Arc::new(value), text, json, paths }
    }
}

impl<T: Clone + Send + Sync + 'static> AnySetting for Setting<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn help(&self) -> &'static str {
        self.help
    }

    fn places(&self) -> AllowedSources {
        self.places
    }

    fn aliases(&self) -> &'static [Alias] {
        self.aliases
    }

    fn placeholder(&self) -> &'static str {
        self.format.placeholder()
    }

    fn allowed(&self) -> String {
        self.format.allowed()
    }

    fn is_list(&self) -> bool {
        self.format.is_list()
    }

    fn is_joined(&self) -> bool {
        self.format.is_joined()
    }

    fn is_switch(&self) -> bool {
        self.format.is_switch()
    }

    fn default_text(&self) -> String {
        match self.default {
            Fallback::Is(value) => self.format.show(&value()).unwrap_or_default(),
            Fallback::Unset(words, _) => words.to_owned(),
        }
    }

    fn has_default(&self) -> bool {
        matches!(self.default, Fallback::Is(_))
    }

    fn amount_on_this_machine(&self) -> Option<usize> {
        self.on_this_machine.map(|amount| amount())
    }

    fn implied_by<'e>(&self, env: &'e Environment) -> Option<&'e str> {
        self.implied.and_then(|variable| variable(env))
    }

    fn stored_default(&self) -> SettingValue {
        self.store(self.default_value())
    }

    fn parse(&self, text: &str, folder: &Path) -> Result<SettingValue, String> {
        self.format.parse(text, folder).map(|value| self.store(value))
    }

    fn concat(&self, parts: &[SettingValue]) -> SettingValue {
        let parts = parts.iter().filter_map(|part| part.value.downcast_ref::<T>().cloned());
        self.store(self.format.concat(parts.collect()).unwrap_or_else(|| self.default_value()))
    }
}
