//! The tables of settings in `docs/`.

use std::fmt::Write as _;

use rouse_config::settings::{Group, SettingsTable};

/// The settings of a role, as tables in Markdown.
pub(crate) fn tables(table: &SettingsTable) -> String {
    let mut text = String::new();
    for Group { title, settings } in table.groups {
        write!(text, "\n### {title}\n\n| setting | default | allowed | what it does |\n").unwrap();
        text.push_str("| --- | --- | --- | --- |\n");
        for setting in *settings {
            let default = setting.default_text();
            let default = if setting.has_default() { format!("`{default}`") } else { default };
            writeln!(
                text,
                "| `{}` | {default} | {} | {} |",
                setting.name(),
                setting.allowed(),
                setting.help()
            )
            .unwrap();
        }
    }
    text.push('\n');
    text
}
