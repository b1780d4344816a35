//! Help and documentation say every setting. `ROUSE_WRITE_DOCS=1` writes the documentation anew.

use std::fmt::Write as _;
use std::fs;

use clap::CommandFactory;
use rouse_cli::args::Rouse;
use rouse_cli::gateway::table::{Fallback, Heading, SETTINGS, Setting, Ways};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gateway-configuration.md");
const BEGIN: &str = "<!-- settings: begin -->\n";
const END: &str = "<!-- settings: end -->\n";

fn help() -> String {
    let mut command = Rouse::command().term_width(0);
    command.find_subcommand_mut("gateway").unwrap().render_long_help().to_string()
}

#[test]
fn help_says_every_flag_with_its_default_and_its_variables() {
    let help = help();
    for heading in Heading::ALL {
        let (_, part) =
            help.split_once(&format!("\n{heading}:\n")).unwrap_or_else(|| panic!("{heading}: {help}"));
        let others = Heading::ALL.map(|other| format!("\n{other}:\n"));
        let end = others.iter().filter_map(|other| part.find(other)).min();
        let part = &part[..end.unwrap_or(part.len())];
        for setting in SETTINGS.iter().filter(|setting| setting.heading == heading) {
            let Some(flag) = setting.flag() else { continue };
            let found = part.split_once(&format!("      {flag} "));
            let (_, first) = found.unwrap_or_else(|| panic!("{flag} is not under {heading}: {part}"));
            let entry: Vec<&str> = first.split("\n      --").next().unwrap().split_whitespace().collect();
            // As if no line had been broken.
            let entry = entry.join(" ");
            let default = format!("[default: {}]", setting.default.as_str());
            assert!(entry.contains(setting.help) && entry.contains(&default), "{flag}: {entry}");
            let names =
                setting.variable().into_iter().chain(setting.aliases.iter().map(|it| it.name.to_owned()));
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
    for setting in SETTINGS {
        let expected = match setting.default {
            Fallback::Is(text) => text,
            Fallback::Nothing(_) => "",
        };
        assert_eq!(super::listed(&settings, setting.name).0, expected, "{}", setting.name);
    }
}

#[test]
fn the_documentation_has_the_table_of_settings() {
    let page = fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    let expected = tables();
    if std::env::var_os("ROUSE_WRITE_DOCS").is_some() {
        fs::write(PAGE, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(found, expected, "run this test with ROUSE_WRITE_DOCS=1 and look at what it changed");
}

fn tables() -> String {
    let mut text = String::new();
    for heading in Heading::ALL {
        write!(text, "\n## {heading}\n\n").unwrap();
        text.push_str("| setting | default | allowed | what it does | KEDA's variables |\n");
        text.push_str("| --- | --- | --- | --- | --- |\n");
        for setting in SETTINGS.iter().filter(|setting| setting.heading == heading) {
            row(setting, &mut text);
        }
    }
    text.push('\n');
    text
}

fn row(setting: &Setting, text: &mut String) {
    let name = match setting.ways {
        Ways::All => format!("`{}`", setting.name),
        Ways::Part { list, part } => format!("`{}` (in the file: `{part}` in `{list}`)", setting.name),
        Ways::KedaOnly => format!("`{}` (only by KEDA's variables)", setting.name),
    };
    let default = match setting.default {
        Fallback::Is(text) => format!("`{text}`"),
        Fallback::Nothing(words) => words.to_owned(),
    };
    let alias = |alias: &rouse_cli::gateway::Alias| {
        let old = if alias.successor.is_some() { " (deprecated)" } else { "" };
        format!("`{}`{old}", alias.name)
    };
    let aliases: Vec<String> = setting.aliases.iter().map(alias).collect();
    let (allowed, help) = (setting.kind.allowed(), setting.help);
    writeln!(text, "| {name} | {default} | {allowed} | {help} | {} |", aliases.join(", ")).unwrap();
}
