//! What a pod's gRPC health service answers, byte for byte.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rouse_net::probe::grpc_health_proto::decode;

fuzz_target!(|body: &[u8]| {
    // A frame has a head of five bytes; less than that is never an answer.
    assert!(decode(body).is_err() || body.len() >= 5);
});
