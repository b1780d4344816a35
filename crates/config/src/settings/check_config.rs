//! Prints `--check-config`: every setting, its value, and where the value comes from.

use std::io::{self, Write};

use clap::ValueEnum;
use serde_json::json;

use super::read::{FoundSetting, Values};

/// The output format of `--check-config`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ShowFormat {
    /// A table for people
    #[default]
    Text,
    /// A list of {name, value, origin}
    Json,
}

impl Values {
    /// Prints every setting.
    pub fn show(&self, format: ShowFormat, out: &mut dyn Write) -> io::Result<()> {
        match format {
            ShowFormat::Text => text(self.all(), out),
            ShowFormat::Json => json(self.all(), out),
        }
    }
}

fn text(all: &[FoundSetting], out: &mut dyn Write) -> io::Result<()> {
    let rows: Vec<[String; 3]> = all.iter().map(row).collect();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let (name_width, value_width) = (width(0), width(1));
    for [name, value, origin] in &rows {
        writeln!(out, "{name:name_width$}  {value:value_width$}  {origin}")?;
    }
    Ok(())
}

fn row(FoundSetting { setting, value, origin }: &FoundSetting) -> [String; 3] {
    let unset = || {
        let amount = setting.amount_on_this_machine().map_or(String::new(), |amount| format!(": {amount}"));
        format!("({}{amount})", setting.default_text())
    };
    [setting.name().to_owned(), value.text.clone().unwrap_or_else(unset), origin.to_string()]
}

fn json(all: &[FoundSetting], out: &mut dyn Write) -> io::Result<()> {
    let one = |found: &FoundSetting| json!({"name": found.setting.name(), "value": found.value.json, "origin": found.origin.to_string()});
    let all: serde_json::Value = all.iter().map(one).collect();
    writeln!(out, "{all:#}")
}
