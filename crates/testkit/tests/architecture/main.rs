//! Checks the sources against ARCHITECTURE.md: imports between crates and between rooms (top-level modules), the length
//! of files and functions, and that no two public types share a name.
#![allow(clippy::unwrap_used, reason = "a test")]

mod rules;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use source::Imports;

#[test]
fn crates_import_only_the_crates_that_the_table_allows() {
    let mut listed: Vec<&str> = rules::CRATES.iter().map(|(name, _)| *name).collect();
    listed.sort_unstable();
    assert_eq!(source::crates(), listed, "the table in rules.rs has a row for each crate");
    for (name, allowed) in rules::CRATES {
        let manifest = source::repository().join("crates").join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        let sections = manifest.split("\n[").find(|section| section.starts_with("dependencies]")).unwrap();
        let imported = sections.lines().filter_map(|line| line.strip_prefix("rouse-"));
        let imported = imported.map(|line| line.split(['.', ' ']).next().unwrap());
        let wrong: Vec<&str> = imported.filter(|other| !allowed.contains(other)).collect();
        assert!(wrong.is_empty(), "crate {name} may not import {wrong:?}, only {allowed:?}");
    }
}

#[test]
fn no_rooms_of_a_crate_import_each_other_in_a_cycle() {
    let of = |name: String| {
        let rooms = rooms_in_cycles(&source::imports(&source::files(&name)));
        rooms.into_iter().map(move |room| format!("{name}/{room}"))
    };
    let cyclic: Vec<String> = source::crates().into_iter().flat_map(of).collect();
    assert_eq!(cyclic, rules::CYCLES, "rooms that are part of an import cycle, and those that may be");
}

#[test]
fn imports_between_rooms_go_in_the_written_direction() {
    for (name, layers) in rules::LAYERS {
        let imports = source::imports(&source::files(name));
        let layer_with = |room: &str| layers.iter().position(|layer| layer.contains(&room));
        let layer = |room: &str| layer_with(room).or_else(|| layer_with("*"));
        for (room, imported) in &imports {
            let from = layer(room).unwrap_or_else(|| panic!("{name}/{room} has no layer in rules.rs"));
            for other in imported {
                let to = layer(other).unwrap_or_else(|| panic!("{name}/{other} has no layer in rules.rs"));
                assert!(from < to, "{name}/{room} imports {name}/{other}, against the direction {layers:?}");
            }
        }
    }
}

#[test]
fn foreign_types_stay_in_the_rooms_that_may_use_them() {
    for (name, rooms, words) in rules::WORDS {
        let files = source::files(name);
        let others = files.iter().filter(|file| file.room().is_some_and(|room| !rooms.contains(&room)));
        let found: Vec<String> = others.flat_map(|file| file.lines_with(words)).collect();
        assert!(found.is_empty(), "only {rooms:?} of {name} may use {words:?}: {found:#?}");
    }
}

#[test]
fn production_files_and_functions_fit_in_a_head() {
    let (mut files, mut functions) = (Vec::new(), Vec::new());
    for file in source::crates().iter().flat_map(|name| source::files(name)) {
        functions.extend(file.functions_over(rules::MOST_LINES_OF_A_FUNCTION));
        if file.len() > rules::MOST_LINES_OF_A_FILE {
            files.push(file.path);
        }
    }
    files.sort();
    functions.sort();
    assert_eq!(files, rules::LONG_FILES, "files that are too long, and those that may be");
    assert_eq!(functions, rules::LONG_FUNCTIONS, "functions that are too long, and those that may be");
}

#[test]
fn the_name_of_a_public_type_has_one_meaning() {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in source::crates().iter().flat_map(|name| source::files(name)) {
        if rules::KUBERNETES_NAMES.iter().any(|folder| file.path.starts_with(folder)) {
            continue;
        }
        for name in file.public_types() {
            types.entry(name.to_owned()).or_default().push(file.path.clone());
        }
    }
    types.retain(|_, files| files.len() > 1);
    assert!(types.is_empty(), "types of one name: {types:#?}");
}

#[test]
fn the_code_map_names_only_files_that_exist() {
    let architecture = fs::read_to_string(source::repository().join("ARCHITECTURE.md")).unwrap();
    let (_, map) = architecture.split_once("## Code map").unwrap();
    let (map, _) = map.split_once("\n## ").unwrap();
    let paths: Vec<String> =
        source::crates().iter().flat_map(|name| source::files(name)).map(|file| file.path).collect();
    let is_file = |text: &&str| Path::new(text).extension().is_some_and(|extension| extension == "rs");
    let named: Vec<&str> = map.split('`').skip(1).step_by(2).filter(is_file).collect();
    assert!(named.len() > 100, "the code map names files in backticks: {named:?}");
    let exists = |name: &str| paths.iter().any(|path| path.ends_with(&format!("/{name}")));
    let gone: Vec<&str> =
        named.into_iter().filter(|name| !exists(name) && !source::repository().join(name).exists()).collect();
    assert!(gone.is_empty(), "ARCHITECTURE.md names files that do not exist: {gone:?}");
}

/// The rooms from which a chain of imports leads back to themselves.
fn rooms_in_cycles(imports: &Imports) -> BTreeSet<String> {
    let reaches = |start: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(room) = next.pop() {
            next.extend(imports[room].iter().filter(|other| seen.insert(*other)));
        }
        seen.contains(start)
    };
    imports.keys().filter(|room| reaches(room)).cloned().collect()
}

#[test]
fn a_cycle_is_found_and_the_rooms_that_lead_into_it_are_not_part_of_it() {
    let imports = [("a", vec!["b"]), ("b", vec!["c"]), ("c", vec!["b"]), ("d", vec![])];
    let imports =
        imports.map(|(room, others)| (room.to_owned(), others.into_iter().map(str::to_owned).collect()));
    let cyclic = rooms_in_cycles(&imports.into_iter().collect());
    assert_eq!(cyclic, BTreeSet::from(["b".to_owned(), "c".to_owned()]));
}
