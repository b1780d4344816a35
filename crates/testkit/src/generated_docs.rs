//! The generated part of a documentation page, between two markers: compares it, or writes it again with
//! `ROUSE_WRITE_DOCS=1`.

use std::fs;
use std::path::Path;

const BEGIN: &str = "<!-- settings: begin -->\n";
const END: &str = "<!-- settings: end -->\n";

/// Compares the generated part of `docs/<page>` with `expected`. With `ROUSE_WRITE_DOCS=1`, replaces it instead.
///
/// # Panics
///
/// If the part differs, or the page or its markers are missing.
#[expect(clippy::panic, reason = "this is how a test fails")]
pub fn check(page: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?)));
    let Some((before, (found, after))) = parts else { panic!("{page} has no {BEGIN:?} and {END:?}") };
    if std::env::var_os("ROUSE_WRITE_DOCS").is_some() {
        let written = fs::write(&path, format!("{before}{BEGIN}{expected}{END}{after}"));
        return written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    assert_eq!(found, expected, "run this test with ROUSE_WRITE_DOCS=1 and look at what it changed");
}
