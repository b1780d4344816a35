//! Fuzzes the requests of an Envoy and the changes between them: nothing panics, no response names a resource twice, and nothing is sent
//! without a reason. Each message has its length before it, in one byte.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut rest = input;
    let messages = std::iter::from_fn(|| {
        let (length, behind) = rest.split_first()?;
        let (message, behind) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = behind;
        Some(message)
    });
    rouse_grpc::fuzzing::xds_stream(messages);
});
