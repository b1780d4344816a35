//! The examples and links of the README and of `docs/` work: commands parse, files are valid, links lead somewhere.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use rouse_cli::args::Rouse;
use rouse_config::document::from_node;
use rouse_config::document::yaml::Reader;
use rouse_daemon::rouse_yaml;
use rouse_kube::objects::Service;
use rouse_kube::objects::route::{self, RouteKind, RouteObject};
use rouse_kube::objects::slices::Selector;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages that users read, by their paths below the repository.
fn pages() -> Vec<(String, String)> {
    let docs = fs::read_dir(repository().join("docs")).unwrap();
    let names = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().into_string().unwrap()));
    let is_page = |name: &String| Path::new(name).extension().is_some_and(|it| it == "md");
    let mut names: Vec<String> = names.filter(is_page).collect();
    names.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md"].map(str::to_owned));
    names.extend(["bench/README.md", "e2e/cluster/README.md"].map(str::to_owned));
    names.sort();
    let read = |name: String| (fs::read_to_string(repository().join(&name)).unwrap(), name);
    names.into_iter().map(read).map(|(text, name)| (name, text)).collect()
}

/// The fenced blocks of a page: the word after the fence, and the text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(kind) = line.trim_start().strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().take_while(|line| line.trim_start() != "```").collect();
        all.push((kind.to_owned(), body.join("\n")));
    }
    all
}

/// The commands on a page: the lines of `sh` blocks, and those after a `$` in `console` blocks.
fn typed(page: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (kind, text) in blocks(page) {
        let lines = text.lines().map(str::trim);
        match kind.as_str() {
            "sh" => all.extend(lines.map(str::to_owned)),
            "console" => all.extend(lines.filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned)),
            _ => {}
        }
    }
    all
}

/// The calls of `rouse` in a line, without the other programs of a pipe and without comments.
fn calls(line: &str) -> Vec<Vec<String>> {
    let line = line.split(" #").next().unwrap();
    let parts = line.split(['|', ';', '&']).map(str::trim);
    let calls = parts.filter_map(|part| match part.strip_prefix("cargo run --release -- ") {
        Some(rest) => Some(format!("rouse {rest}")),
        None => part.starts_with("rouse ").then(|| part.to_owned()),
    });
    calls.map(|call| call.split_whitespace().map(str::to_owned).collect()).collect()
}

#[test]
fn every_command_of_the_documentation_is_understood() {
    let mut found = 0;
    for (name, page) in pages() {
        for line in typed(&page) {
            for call in calls(&line) {
                found += 1;
                if let Err(error) = Rouse::try_parse_from(&call) {
                    panic!("{name}: {line}\n{error}");
                }
            }
        }
    }
    assert!(found > 20, "only {found} commands were found");
}

#[test]
fn a_quick_start_installs_rouse_before_it_calls_it() {
    for name in ["README.md", "docs/quick-start.md", "docs/quick-start-kind.md"] {
        let lines = typed(&fs::read_to_string(repository().join(name)).unwrap());
        let installed = lines.iter().position(|line| line.starts_with("cargo install --path crates/cli"));
        let called = lines.iter().position(|line| line.starts_with("rouse "));
        let Some(called) = called else { continue };
        assert!(installed.is_some_and(|at| at < called), "{name} calls {:?}", lines[called]);
    }
    let readme = typed(&fs::read_to_string(repository().join("README.md")).unwrap());
    for command in ["cargo run --release -- up", "cargo test --workspace"] {
        assert!(readme.iter().any(|line| line == command), "the README lacks {command:?}");
    }
}

#[test]
fn every_example_of_a_rouse_yaml_is_valid() {
    let mut found = 0;
    for (name, page) in pages() {
        for (kind, text) in blocks(&page) {
            if kind == "yaml" && text.lines().any(|line| line == "apps:") {
                found += 1;
                rouse_yaml::read(&text, &name).unwrap_or_else(|errors| panic!("{errors}"));
            }
        }
    }
    assert!(found >= 2, "only {found} examples were found");
}

#[test]
fn every_example_of_a_route_is_valid() {
    let mut found = 0;
    for (name, page) in pages() {
        for (kind, text) in blocks(&page) {
            if kind != "yaml" || !text.contains("\nkind: InterceptorRoute") {
                continue;
            }
            found += 1;
            let mut reader = Reader::new(&text, 1);
            assert!(reader.next_document().unwrap(), "{name}: {text}");
            let object: RouteObject = from_node(reader.node().unwrap()).unwrap();
            let faults = route::read(RouteKind::InterceptorRoute, &object).err().unwrap_or_default();
            assert_eq!(faults, Vec::<String>::new(), "{name}: {text}");
        }
    }
    assert!(found >= 2, "only {found} examples were found");
}

#[test]
fn every_example_of_a_service_without_a_selector_names_its_pods() {
    let mut found = 0;
    for (name, page) in pages() {
        for (kind, text) in blocks(&page) {
            if kind != "yaml" || !text.contains("rouse.dev/selector:") {
                continue;
            }
            found += 1;
            let mut reader = Reader::new(&text, 1);
            assert!(reader.next_document().unwrap(), "{name}: {text}");
            let service: Service = from_node(reader.node().unwrap()).unwrap();
            assert!(matches!(service.selector(), Ok(Selector::Ours(_))), "{name}: {text}");
        }
    }
    assert!(found >= 1, "no example was found");
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
    kept.map(|it| if it == ' ' { '-' } else { it }).collect()
}

fn anchors(page: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let mut all = BTreeSet::new();
    for line in page.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if !fenced && heading.len() < line.len() && heading.starts_with(' ') {
            all.insert(anchor(heading));
        }
    }
    all
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_exist() {
    let mut found = 0;
    for (name, page) in pages() {
        let folder = repository().join(&name).parent().unwrap().to_owned();
        let links = page.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        for link in links.filter(|link| !link.contains("://")) {
            found += 1;
            let (file, heading) = link.split_once('#').map_or((link, None), |(file, at)| (file, Some(at)));
            let path = if file.is_empty() { repository().join(&name) } else { folder.join(file) };
            assert!(path.exists(), "{name} links to {link}, and there is no {}", path.display());
            if let Some(heading) = heading {
                let there = anchors(&fs::read_to_string(&path).unwrap());
                assert!(there.contains(heading), "{name} links to {link}; there are {there:?}");
            }
        }
    }
    assert!(found > 50, "only {found} links were found");
}

#[test]
fn the_index_of_the_documentation_lists_every_page() {
    let index = fs::read_to_string(repository().join("docs/README.md")).unwrap();
    for (name, _) in pages() {
        let Some(page) = name.strip_prefix("docs/").filter(|page| *page != "README.md") else { continue };
        assert!(index.contains(&format!("]({page})")), "docs/README.md does not list {page}");
    }
}
