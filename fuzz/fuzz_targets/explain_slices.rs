//! Fuzzes `rouse explain slices` with arbitrary bytes. Its output must be valid input.
#![no_main]

use std::sync::LazyLock;

use clap::Parser;
use libfuzzer_sys::fuzz_target;
use rouse_cli::args::Rouse;
use rouse_cli::{Streams, run};

static YAML: LazyLock<Rouse> =
    LazyLock::new(|| Rouse::parse_from(["rouse", "explain", "slices", "--max-endpoints-per-slice=2"]));
static DIFF: LazyLock<Rouse> = LazyLock::new(|| Rouse::parse_from(["rouse", "explain", "slices", "--diff"]));

fuzz_target!(|bytes: &[u8]| {
    let answer = |rouse: &Rouse, bytes: &[u8]| {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let result = run(rouse, &mut Streams { stdin: &mut &*bytes, out: &mut out, err: &mut err });
        result.map(|()| out)
    };
    let yaml = answer(&YAML, bytes);
    assert_eq!(yaml.is_ok(), answer(&DIFF, bytes).is_ok());
    if let Ok(yaml) = yaml {
        answer(&YAML, &yaml).expect("the answer is good input");
    }
});
