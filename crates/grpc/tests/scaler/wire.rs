//! The bytes of KEDA's proto, written by hand from its public definition: field numbers and types are those that KEDA uses.

use prost::Message;

use crate::harness::route_trigger;
use crate::proto::externalscaler::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    ScaledObjectRef,
};
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse};

/// A field with a length.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

fn is_the_wire_of<M: Message + Default + PartialEq + std::fmt::Debug>(message: &M, bytes: &[u8]) {
    assert_eq!(M::decode(bytes).unwrap(), *message);
    assert_eq!(message.encode_to_vec(), bytes);
}

#[test]
fn messages_have_the_field_numbers_that_keda_uses() {
    let entry = [field(1, b"interceptorRoute"), field(2, b"cart")].concat();
    let of = ScaledObjectRef {
        scaler_metadata: [("interceptorRoute".to_owned(), "cart".to_owned())].into(),
        ..route_trigger("cart")
    };
    let of_bytes = [field(1, b"cart-scaler"), field(2, b"shop"), field(3, &entry)].concat();
    is_the_wire_of(&of, &of_bytes);

    is_the_wire_of(&IsActiveResponse { result: true }, &[0x08, 1]);
    is_the_wire_of(&IsActiveResponse { result: false }, &[]);

    // 1.5 as a double, and 300 as a varint.
    let half = [0x19, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f];
    let number = [&field(1, b"m")[..], &[0x10, 0xac, 0x02], &half].concat();
    let spec = MetricSpec { metric_name: "m".into(), target_size: 300, target_size_float: 1.5 };
    is_the_wire_of(&GetMetricSpecResponse { metric_specs: vec![spec] }, &field(1, &number));
    let value = MetricValue { metric_name: "m".into(), metric_value: 300, metric_value_float: 1.5 };
    is_the_wire_of(&GetMetricsResponse { metric_values: vec![value] }, &field(1, &number));

    let request = GetMetricsRequest { scaled_object_ref: Some(of), metric_name: "m".into() };
    is_the_wire_of(&request, &[field(1, &of_bytes), field(2, b"m")].concat());
}

#[test]
fn health_has_the_field_numbers_of_its_definition() {
    is_the_wire_of(&HealthCheckRequest { service: "readiness".into() }, &field(1, b"readiness"));
    for (status, bytes) in [(0, &[][..]), (1, &[0x08, 1]), (2, &[0x08, 2]), (3, &[0x08, 3])] {
        is_the_wire_of(&HealthCheckResponse { status }, bytes);
    }
}
