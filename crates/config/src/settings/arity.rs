//! The arity of a setting: exactly one value, an optional value, or a list.

use std::path::{Path, PathBuf};

use super::value_types::SettingKind;

/// How many values of a kind a setting of type `T` has.
pub trait Arity<T>: Sync {
    /// See [`SettingKind::placeholder`].
    fn placeholder(&self) -> &'static str;
    /// See [`SettingKind::allowed`]; of one element if it is a list.
    fn allowed(&self) -> String;
    /// See [`SettingKind::parse`]; reads one element if it is a list.
    fn parse(&self, text: &str, folder: &Path) -> Result<T, String>;
    /// See [`SettingKind::show`]; `None` if it is unset.
    fn show(&self, value: &T) -> Option<String>;
    /// See [`SettingKind::json`].
    fn json(&self, value: &T) -> serde_json::Value;
    /// See [`SettingKind::path`].
    fn paths(&self, value: &T) -> Vec<PathBuf>;
    /// The elements of several lists as one list; the last of several other values.
    fn concat(&self, parts: Vec<T>) -> Option<T>;
    /// True if it can be given several times.
    fn is_list(&self) -> bool;
    /// See [`SettingKind::is_joined`].
    fn is_joined(&self) -> bool;
    /// See [`SettingKind::is_switch`].
    fn is_switch(&self) -> bool;
}

/// Exactly one value.
#[derive(Debug, Clone, Copy)]
pub struct Required<K>(pub K);

/// One value, or none.
#[derive(Debug, Clone, Copy)]
pub struct Optional<K>(pub K);

/// Any number of values.
#[derive(Debug, Clone, Copy)]
pub struct List<K>(pub K);

impl<K: SettingKind> Arity<K::Value> for Required<K> {
    fn placeholder(&self) -> &'static str {
        self.0.placeholder()
    }

    fn allowed(&self) -> String {
        self.0.allowed()
    }

    fn parse(&self, text: &str, folder: &Path) -> Result<K::Value, String> {
        self.0.parse(text, folder)
    }

    fn show(&self, value: &K::Value) -> Option<String> {
        Some(self.0.show(value))
    }

    fn json(&self, value: &K::Value) -> serde_json::Value {
        self.0.json(value)
    }

    fn paths(&self, value: &K::Value) -> Vec<PathBuf> {
        self.0.path(value).into_iter().collect()
    }

    fn concat(&self, mut parts: Vec<K::Value>) -> Option<K::Value> {
        parts.pop()
    }

    fn is_list(&self) -> bool {
        false
    }

    fn is_joined(&self) -> bool {
        self.0.is_joined()
    }

    fn is_switch(&self) -> bool {
        self.0.is_switch()
    }
}

impl<K: SettingKind> Arity<Option<K::Value>> for Optional<K> {
    fn placeholder(&self) -> &'static str {
        self.0.placeholder()
    }

    fn allowed(&self) -> String {
        self.0.allowed()
    }

    fn parse(&self, text: &str, folder: &Path) -> Result<Option<K::Value>, String> {
        self.0.parse(text, folder).map(Some)
    }

    fn show(&self, value: &Option<K::Value>) -> Option<String> {
        value.as_ref().map(|value| self.0.show(value))
    }

    fn json(&self, value: &Option<K::Value>) -> serde_json::Value {
        value.as_ref().map_or(serde_json::Value::Null, |value| self.0.json(value))
    }

    fn paths(&self, value: &Option<K::Value>) -> Vec<PathBuf> {
        value.iter().filter_map(|value| self.0.path(value)).collect()
    }

    fn concat(&self, mut parts: Vec<Option<K::Value>>) -> Option<Option<K::Value>> {
        parts.pop()
    }

    fn is_list(&self) -> bool {
        false
    }

    fn is_joined(&self) -> bool {
        self.0.is_joined()
    }

    fn is_switch(&self) -> bool {
        self.0.is_switch()
    }
}

impl<K: SettingKind> Arity<Vec<K::Value>> for List<K> {
    fn placeholder(&self) -> &'static str {
        self.0.placeholder()
    }

    fn allowed(&self) -> String {
        self.0.allowed()
    }

    fn parse(&self, text: &str, folder: &Path) -> Result<Vec<K::Value>, String> {
        self.0.parse(text, folder).map(|value| vec![value])
    }

    fn show(&self, values: &Vec<K::Value>) -> Option<String> {
        let shown: Vec<String> = values.iter().map(|value| self.0.show(value)).collect();
        (!shown.is_empty()).then(|| shown.join(","))
    }

    fn json(&self, values: &Vec<K::Value>) -> serde_json::Value {
        if values.is_empty() {
            return serde_json::Value::Null;
        }
        values.iter().map(|value| self.0.json(value)).collect()
    }

    fn paths(&self, values: &Vec<K::Value>) -> Vec<PathBuf> {
        values.iter().filter_map(|value| self.0.path(value)).collect()
    }

    fn concat(&self, parts: Vec<Vec<K::Value>>) -> Option<Vec<K::Value>> {
        Some(parts.concat())
    }

    fn is_list(&self) -> bool {
        true
    }

    fn is_joined(&self) -> bool {
        false
    }

    fn is_switch(&self) -> bool {
        false
    }
}
