//! What `--check-config` prints.

use std::io::Write;

use serde_json::json;

use super::args::Format;
use super::settings::{Listed, Settings};
use super::table::SETTINGS;
use crate::failure::Failure;
use crate::process::files::Capacity;

/// Prints every setting, what it is and where that comes from.
pub(super) fn settings(settings: &Settings, format: Format, out: &mut dyn Write) -> Result<(), Failure> {
    match format {
        Format::Text => text(settings.listed(), out),
        Format::Json => json(settings.listed(), out),
    }
}

fn text(listed: &[Listed], out: &mut dyn Write) -> Result<(), Failure> {
    let rows: Vec<[String; 3]> = listed.iter().map(row).collect();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let (name_width, value_width) = (width(0), width(1));
    for [name, value, origin] in &rows {
        writeln!(out, "{name:name_width$}  {value:value_width$}  {origin}")?;
    }
    Ok(())
}

fn row(listed: &Listed) -> [String; 3] {
    let default = || {
        let setting = SETTINGS.iter().find(|setting| setting.name == listed.name);
        let here = here(listed.name).map_or(String::new(), |here| format!(": {here}"));
        setting.map_or(String::new(), |setting| format!("({}{here})", setting.default.as_str()))
    };
    let value = listed.value.as_ref().map_or_else(default, ToString::to_string);
    [listed.name.to_owned(), value, listed.origin.to_string()]
}

/// What a default that follows this machine comes to.
fn here(name: &str) -> Option<usize> {
    let capacity = Capacity::now();
    match name {
        "max-connections" => Some(capacity.connections),
        "buffer-memory" => Some(capacity.buffers),
        "hold-memory" => Some(capacity.holds),
        _ => None,
    }
}

fn json(listed: &[Listed], out: &mut dyn Write) -> Result<(), Failure> {
    let one = |it: &Listed| {
        let value = it.value.as_ref().map(super::value::Value::json);
        json!({"name": it.name, "value": value, "origin": it.origin.to_string()})
    };
    let all: serde_json::Value = listed.iter().map(one).collect();
    Ok(writeln!(out, "{all:#}")?)
}
