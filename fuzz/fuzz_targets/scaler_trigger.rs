//! Fuzzes the metadata of KEDA's triggers: nothing panics, and errors are short and on one line.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    rouse_grpc::fuzzing::trigger(input);
});
