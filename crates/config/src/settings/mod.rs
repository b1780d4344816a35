//! The settings of a command from one table: flag, variable, file key, alias, default, help and `--check-config`.
//!
//! A setting is a static [`Setting<T>`]. A command has a [`SettingsTable`] of them, in groups that several commands may share.
//! [`read()`] takes flags, variables and a file into [`Values`], and `values.get(&SETTING)` answers a `T`.

mod args;
mod file;
mod kinds;
mod read;
mod setting;
mod shape;
mod show;
mod sources;

pub use args::{Flags, HasTable};
pub use kinds::{
    Address, DurationRange, FilePath, Label, PrivateAddress, SettingKind, Size, Switch, Text, Whole, Word,
};
pub use read::{ConfigFile, FoundSetting, Reading, SettingsTable, Values, read};
pub use setting::{Alias, AnySetting, Fallback, Group, Places, Setting, Stored, Translated};
pub use shape::{Many, Maybe, One, Shape};
pub use show::ShowFormat;
pub use sources::{Environment, Origin, Problem, Problems, SettingWarning};
