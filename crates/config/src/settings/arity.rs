//! How many values a setting has, which its type says: exactly one (`V`), an optional one (`Option<V>`), or a list (`Vec<V>`).

use std::path::{Path, PathBuf};
use std::slice;

use super::value_types::SettingKind;

/// A type that holds values of type `V`.
pub trait Arity<V>: Sized {
    /// True if it can be given several times.
    const IS_LIST: bool;
    /// With one value.
    fn of(value: V) -> Self;
    /// All values, in order.
    fn values(&self) -> &[V];
    /// The elements of several lists as one list; the last of several other values.
    fn concat(parts: Vec<Self>) -> Option<Self>;
}

impl<V> Arity<V> for V {
    const IS_LIST: bool = false;

    fn of(value: V) -> Self {
        value
    }

    fn values(&self) -> &[V] {
        slice::from_ref(self)
    }

    fn concat(mut parts: Vec<Self>) -> Option<Self> {
        parts.pop()
    }
}

impl<V> Arity<V> for Option<V> {
    const IS_LIST: bool = false;

    fn of(value: V) -> Self {
        Some(value)
    }

    fn values(&self) -> &[V] {
        self.as_slice()
    }

    fn concat(mut parts: Vec<Self>) -> Option<Self> {
        parts.pop()
    }
}

impl<V> Arity<V> for Vec<V> {
    const IS_LIST: bool = true;

    fn of(value: V) -> Self {
        vec![value]
    }

    fn values(&self) -> &[V] {
        self
    }

    fn concat(parts: Vec<Self>) -> Option<Self> {
        Some(parts.into_iter().flatten().collect())
    }
}

/// How a setting of type `T` is read, shown and described: every [`SettingKind`] whose values `T` holds.
pub trait SettingFormat<T>: Sync {
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
    /// See [`Arity::concat`].
    fn concat(&self, parts: Vec<T>) -> Option<T>;
    /// See [`Arity::IS_LIST`].
    fn is_list(&self) -> bool;
    /// See [`SettingKind::is_joined`].
    fn is_joined(&self) -> bool;
    /// See [`SettingKind::is_switch`].
    fn is_switch(&self) -> bool;
}

impl<K: SettingKind, T: Arity<K::Value>> SettingFormat<T> for K {
    fn placeholder(&self) -> &'static str {
        SettingKind::placeholder(self)
    }

    fn allowed(&self) -> String {
        SettingKind::allowed(self)
    }

    fn parse(&self, text: &str, folder: &Path) -> Result<T, String> {
        SettingKind::parse(self, text, folder).map(T::of)
    }

    fn show(&self, value: &T) -> Option<String> {
        let shown: Vec<String> = value.values().iter().map(|value| SettingKind::show(self, value)).collect();
        (!shown.is_empty()).then(|| shown.join(","))
    }

    fn json(&self, value: &T) -> serde_json::Value {
        let mut values = value.values().iter().map(|value| SettingKind::json(self, value));
        match values.next() {
            None => serde_json::Value::Null,
            Some(first) if T::IS_LIST => [first].into_iter().chain(values).collect(),
            Some(only) => only,
        }
    }

    fn paths(&self, value: &T) -> Vec<PathBuf> {
        value.values().iter().filter_map(|value| SettingKind::path(self, value)).collect()
    }

    fn concat(&self, parts: Vec<T>) -> Option<T> {
        T::concat(parts)
    }

    fn is_list(&self) -> bool {
        T::IS_LIST
    }

    fn is_joined(&self) -> bool {
        !T::IS_LIST && SettingKind::is_joined(self)
    }

    fn is_switch(&self) -> bool {
        !T::IS_LIST && SettingKind::is_switch(self)
    }
}
