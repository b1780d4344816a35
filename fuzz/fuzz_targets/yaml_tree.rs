//! Fuzzes the YAML parser: no panic, no endless loop, and skipping a value reads exactly as much as building it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rouse_config::document::yaml::Reader;
use rouse_config::document::{DocumentError, Mark};

fuzz_target!(|text: &str| {
    let built = documents(text, |reader| reader.node().map(|node| node.mark));
    let skipped = documents(text, |reader| {
        let mark = reader.mark();
        reader.skip().and(mark)
    });
    if let Ok(built) = built {
        assert_eq!(Ok(built), skipped);
    }
});

fn documents(
    text: &str,
    read: impl Fn(&mut Reader<'_>) -> Result<Mark, DocumentError>,
) -> Result<Vec<Mark>, DocumentError> {
    let mut reader = Reader::new(text, 1);
    let mut marks = Vec::new();
    while reader.next_document()? {
        marks.push(read(&mut reader)?);
    }
    Ok(marks)
}
