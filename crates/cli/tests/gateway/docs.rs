//! Help and documentation list every setting. `ROUSE_WRITE_DOCS=1` regenerates the documentation.

use std::fmt::Write as _;

use clap::CommandFactory;
use rouse_cli::args::Rouse;
use rouse_config::settings::{Alias, AllowedSources, AnySetting, Group};
use rouse_daemon::gateway::settings::TABLE;
use rouse_testkit::generated_docs;

fn help() -> String {
    let mut command = Rouse::command().term_width(0);
    command.find_subcommand_mut("gateway").unwrap().render_long_help().to_string()
}

#[test]
fn help_says_every_flag_with_its_default_and_its_variables() {
    let help = help();
    for Group { title, settings } in TABLE.groups {
        let (_, part) =
            help.split_once(&format!("\n{title}:\n")).unwrap_or_else(|| panic!("{title}: {help}"));
        let others = TABLE.groups.iter().map(|other| format!("\n{}:\n", other.title));
        let end = others.filter_map(|other| part.find(&other)).min();
        let part = &part[..end.unwrap_or(part.len())];
        for setting in *settings {
            let Some(flag) = setting.flag() else { continue };
            let found = part.split_once(&format!("      {flag} "));
            let (_, first) = found.unwrap_or_else(|| panic!("{flag} is not under {title}: {part}"));
            let entry: Vec<&str> = first.split("\n      --").next().unwrap().split_whitespace().collect();
            // Undoes the line breaks.
            let entry = entry.join(" ");
            let default = format!("[default: {}]", setting.default_text());
            assert!(entry.contains(setting.help()) && entry.contains(&default), "{flag}: {entry}");
            let names =
                setting.variable().into_iter().chain(setting.aliases().iter().map(|it| it.name.to_owned()));
            for name in names {
                assert!(entry.contains(&name), "{flag} does not name {name}: {entry}");
            }
        }
    }
    assert!(help.contains("--config") && help.contains("ROUSE_CONFIG") && help.contains("SKIP_VERIFY"));
}

#[test]
fn every_default_is_what_the_setting_is() {
    let settings = super::told().settings();
    for setting in TABLE.settings() {
        let expected = if setting.has_default() { setting.default_text() } else { String::new() };
        assert_eq!(super::listed(&settings, setting.name()).0, expected, "{}", setting.name());
    }
}

#[test]
fn the_documentation_has_the_table_of_settings() {
    generated_docs::check("gateway-configuration.md", &tables());
}

fn tables() -> String {
    let mut text = String::new();
    for Group { title, settings } in TABLE.groups {
        write!(text, "\n## {title}\n\n").unwrap();
        text.push_str("| setting | default | allowed | what it does | KEDA's variables |\n");
        text.push_str("| --- | --- | --- | --- | --- |\n");
        for setting in *settings {
            row(*setting, &mut text);
        }
    }
    text.push('\n');
    text
}

fn row(setting: &dyn AnySetting, text: &mut String) {
    let name = match setting.places() {
        AllowedSources::All => format!("`{}`", setting.name()),
        AllowedSources::Part { list, part } => {
            format!("`{}` (in the file: `{part}` in `{list}`)", setting.name())
        }
        AllowedSources::AliasesOnly => format!("`{}` (only by KEDA's variables)", setting.name()),
    };
    let default =
        if setting.has_default() { format!("`{}`", setting.default_text()) } else { setting.default_text() };
    let alias = |alias: &Alias| {
        let old = if alias.successor.is_some() { " (deprecated)" } else { "" };
        format!("`{}`{old}", alias.name)
    };
    let aliases: Vec<String> = setting.aliases().iter().map(alias).collect();
    let (allowed, help) = (setting.allowed(), setting.help());
    writeln!(text, "| {name} | {default} | {allowed} | {help} | {} |", aliases.join(", ")).unwrap();
}
