//! Fuzzes `rouse explain endpoints` with arbitrary bytes, with text and JSON output.
#![no_main]

use std::sync::LazyLock;

use clap::Parser;
use libfuzzer_sys::fuzz_target;
use rouse_cli::args::Rouse;
use rouse_cli::{Streams, run};

static TEXT: LazyLock<Rouse> = LazyLock::new(|| Rouse::parse_from(["rouse", "explain", "endpoints"]));
static JSON: LazyLock<Rouse> =
    LazyLock::new(|| Rouse::parse_from(["rouse", "explain", "endpoints", "-o", "json"]));

fuzz_target!(|bytes: &[u8]| {
    let answer = |rouse: &Rouse| {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let result = run(rouse, &mut Streams { stdin: &mut &*bytes, out: &mut out, err: &mut err });
        result.is_ok().then_some(out)
    };
    let (text, json) = (answer(&TEXT), answer(&JSON));
    // The output format does not decide whether the input is valid.
    assert_eq!(text.is_some(), json.is_some());
    if let Some(json) = json {
        let answer: serde_json::Value = serde_json::from_slice(&json).expect("the answer is JSON");
        assert!(answer["services"].is_array());
    }
});
