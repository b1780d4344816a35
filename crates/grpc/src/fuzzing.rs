//! Entry points of the fuzz targets: what parses input from outside, without a network.

use prost::Message as _;
use rouse_core::scale::{LoadTable, Reporter};
use rouse_core::time::Moment;

use crate::proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use crate::proto::externalscaler::ScaledObjectRef;
use crate::report::stream_protocol::{StreamEvent, StreamProtocol};
use crate::scaler::trigger::Trigger;
use crate::xds::fuzzing::XdsStreams;

/// Reads the messages of one stream of reports, one each 10 ms, into a load table. Returns how many were accepted.
pub fn report_stream<'a>(messages: impl Iterator<Item = &'a [u8]>) -> usize {
    let (mut stream_protocol, mut now, mut accepted) = (StreamProtocol::new(Moment::ZERO), Moment::ZERO, 0);
    let (mut table, reporter) = (LoadTable::new(Moment::ZERO), Reporter::new("fuzz"));
    for message in messages {
        now = now + std::time::Duration::from_millis(10);
        let Ok(heard) = stream_protocol.take_encoded(message, now) else { return accepted };
        accepted += 1;
        if let StreamEvent::Loads { update, .. } = heard {
            // Only a whole state is delivered, and what is delivered says whose counters it has.
            debug_assert!(stream_protocol.is_complete());
            debug_assert!(update.samples.iter().all(|sample| sample.held <= sample.present));
            let keys: Vec<_> = update.samples.iter().map(|sample| sample.key.clone()).collect();
            table.heard(now, &reporter, update);
            debug_assert!(keys.iter().all(|key| table.present(key) == table.present_at(&reporter, key)));
        }
    }
    accepted
}

/// Reads the metadata of a trigger. Returns whether it can be used.
pub fn trigger(encoded: &[u8]) -> bool {
    let Ok(scaled_object) = ScaledObjectRef::decode(encoded) else { return false };
    match Trigger::read(Some(&scaled_object)) {
        Ok(_) => true,
        Err(error) => {
            // The text goes into logs.
            let text = error.to_string();
            debug_assert!(text.len() < 5000 && !text.contains(char::is_control), "{text}");
            false
        }
    }
}

/// Reads the requests of an Envoy, on an incremental stream and on one of the state of the world, and changes resources between them.
/// The first byte of each message says which. Returns how many requests were accepted.
pub fn xds_stream<'a>(messages: impl Iterator<Item = &'a [u8]>) -> usize {
    let (mut streams, mut accepted) = (XdsStreams::new(), 0);
    for message in messages {
        let Some((first, rest)) = message.split_first() else { continue };
        let taken = match first % 4 {
            0 => streams.change(first / 4, rest),
            1 => DiscoveryRequest::decode(rest).is_ok_and(|request| streams.world_request(request)),
            _ => DeltaDiscoveryRequest::decode(rest).is_ok_and(|request| streams.delta_request(request)),
        };
        if !taken {
            return accepted;
        }
        accepted += 1;
    }
    accepted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::report::load::Key;
    use crate::proto::report::reporter_message::Kind;
    use crate::proto::report::{Hello, Load, Loads, Parked, ReporterMessage};
    use crate::xds::resource_type::ResourceType;

    /// Small numbers, and the largest ones.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0..3_u64, Just(u64::MAX), any::<u64>()]
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![3 => Just("shop/cart".to_owned()), 3 => Just("shop/till".to_owned()), 1 => "(?s:.{0,600})"]
    }

    fn load() -> impl Strategy<Value = Load> {
        let key = prop_oneof![
            4 => name().prop_map(|name| Some(Key::Service(name))),
            4 => name().prop_map(|name| Some(Key::Route(name))),
            1 => Just(None),
        ];
        (key, number(), number(), any::<u32>(), any::<u32>(), 0..3_u64).prop_map(
            |(key, requests, busy_micros, in_flight, held, age_micros)| Load {
                key,
                requests,
                busy_micros,
                in_flight,
                held,
                age_micros,
            },
        )
    }

    fn loads() -> impl Strategy<Value = Loads> {
        let parked = (name(), number()).prop_map(|(service, id)| Parked { service, id });
        let entries = (prop::collection::vec(load(), 0..4), prop::collection::vec(parked, 0..3));
        (number(), any::<bool>(), any::<bool>(), entries).prop_map(
            |(sent_at_micros, complete, continues, (loads, parked))| Loads {
                sent_at_micros,
                complete,
                continues,
                loads,
                parked,
            },
        )
    }

    /// Messages that may be true, and some that are none.
    fn message() -> impl Strategy<Value = Vec<u8>> {
        let encoded = |kind| ReporterMessage { kind: Some(kind) }.encode_to_vec();
        prop_oneof![
            1 => any::<u64>().prop_map(move |boot| encoded(Kind::Hello(Hello { boot, ..Hello::default() }))),
            9 => loads().prop_map(move |loads| encoded(Kind::Loads(loads))),
            1 => prop::collection::vec(any::<u8>(), 0..40),
        ]
    }

    /// Requests that an Envoy may send, with names and nonces that are often right, changes of resources, and what is none of these.
    fn envoy_message() -> impl Strategy<Value = Vec<u8>> {
        let names = || prop::collection::vec("[a-c*]|(?s:.{0,9})", 0..4);
        let url = prop_oneof![
            9 => proptest::sample::select(ResourceType::ALL.to_vec()).prop_map(|kind| kind.url().to_owned()),
            1 => "[a-z]{0,3}",
        ];
        let versions = prop::collection::hash_map("[a-c]", "[0-9a-f]{0,17}", 0..3);
        let request = (url, names(), names(), versions, "[0-9]?", any::<bool>()).prop_map(
            |(type_url, subscribe, unsubscribe, versions, response_nonce, rejected)| {
                let request = DeltaDiscoveryRequest {
                    type_url,
                    resource_names_subscribe: subscribe,
                    resource_names_unsubscribe: unsubscribe,
                    initial_resource_versions: versions,
                    response_nonce,
                    error_detail: rejected.then(Default::default),
                    ..DeltaDiscoveryRequest::default()
                };
                [&[2][..], &request.encode_to_vec()].concat()
            },
        );
        let world = (names(), "[0-9]?").prop_map(|(resource_names, response_nonce)| {
            let type_url = ResourceType::Endpoints.url().to_owned();
            let request =
                DiscoveryRequest { type_url, resource_names, response_nonce, ..DiscoveryRequest::default() };
            [&[1][..], &request.encode_to_vec()].concat()
        });
        prop_oneof![9 => request, 3 => world, 3 => prop::collection::vec(any::<u8>(), 0..5)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_message_of_a_reporter_panics(mut messages in prop::collection::vec(message(), 0..12)) {
            let hello = ReporterMessage { kind: Some(Kind::Hello(Hello::default())) };
            messages.insert(0, hello.encode_to_vec());
            prop_assert!(report_stream(messages.iter().map(Vec::as_slice)) >= 1);
        }

        #[test]
        fn no_request_of_an_envoy_panics(messages in prop::collection::vec(envoy_message(), 0..30)) {
            let all = messages.len();
            prop_assert!(xds_stream(messages.iter().map(Vec::as_slice)) <= all);
        }

        #[test]
        fn no_metadata_of_a_trigger_panics(
            texts in ("[a-z.-]{0,8}|(?s:.{0,80})", "[a-z.-]{0,8}|(?s:.{0,80})"),
            metadata in prop::collection::hash_map(
                "interceptorRoute|httpScaledObject|interceptorTargetPendingRequests|(?s:.{0,80})", "[a-z0-9-]{0,9}|(?s:.{0,300})", 0..30
            ),
        ) {
            let of = ScaledObjectRef { name: texts.0, namespace: texts.1, scaler_metadata: metadata };
            trigger(&of.encode_to_vec());
        }
    }
}
