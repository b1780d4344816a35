//! Settings of a command: one table defines flag, variable, file key, aliases, default, help and `--check-config` of each.
//!
//! A setting is a static [`Setting<T>`]. A command has a [`SettingsTable`] of them, in groups that several commands may share.
//! [`read()`] resolves flags, variables and a file to [`Values`], and `values.get(&SETTING)` returns a `T`.

mod args;
mod arity;
mod check_config;
mod file;
mod read;
mod setting;
mod sources;
mod value_types;

pub use args::{Flags, HasTable};
pub use arity::{Arity, SettingFormat};
pub use check_config::ShowFormat;
pub use read::{ConfigFile, FoundSetting, SettingsDiagnostics, SettingsTable, Values, read};
pub use setting::{Alias, AllowedSources, AnySetting, Fallback, Group, Setting, SettingValue, Translated};
pub use sources::{Environment, Origin, Problem, Problems, SettingWarning};
pub use value_types::{
    Address, Choice, DurationRange, FilePath, Label, PrivateAddress, SettingKind, Size, Switch, Text, Whole,
};
