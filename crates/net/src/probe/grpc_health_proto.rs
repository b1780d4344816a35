//! Encoder and strict decoder for the messages of `grpc.health.v1`: `HealthCheckRequest` and `HealthCheckResponse`.

use std::fmt;

/// The status in a `HealthCheckResponse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServingStatus {
    /// The default of the field.
    Unknown,
    /// It serves.
    Serving,
    /// It does not serve.
    NotServing,
    /// The server does not know the requested service.
    ServiceUnknown,
    /// A status that this version does not know.
    Other(u64),
}

impl ServingStatus {
    fn new(number: u64) -> Self {
        match number {
            0 => ServingStatus::Unknown,
            1 => ServingStatus::Serving,
            2 => ServingStatus::NotServing,
            3 => ServingStatus::ServiceUnknown,
            other => ServingStatus::Other(other),
        }
    }
}

impl fmt::Display for ServingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServingStatus::Unknown => f.pad("UNKNOWN"),
            ServingStatus::Serving => f.pad("SERVING"),
            ServingStatus::NotServing => f.pad("NOT_SERVING"),
            ServingStatus::ServiceUnknown => f.pad("SERVICE_UNKNOWN"),
            ServingStatus::Other(number) => write!(f, "status {number}"),
        }
    }
}

/// Why a body is not one `HealthCheckResponse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadHealth {
    /// The body ends in the middle of the message.
    #[error("it is truncated")]
    Truncated,
    /// The body continues after the message.
    #[error("it has more than one message")]
    Trailing,
    /// We offered no compression.
    #[error("it is compressed, though no compression was offered")]
    Compressed,
    /// A varint of more than 64 bits.
    #[error("a number has more than 64 bits")]
    Overlong,
    /// A field with a wrong number or wire type.
    #[error("field {0} has an invalid number or wire type")]
    Field(u64),
}

/// One `HealthCheckRequest` for `service`, with the gRPC frame header.
pub fn encode(service: &str) -> Vec<u8> {
    let mut message = Vec::with_capacity(service.len() + 8);
    // Proto3 omits empty fields.
    if !service.is_empty() {
        message.push(0x0a);
        let mut left = service.len();
        while left >= 0x80 {
            message.push(left.to_le_bytes()[0] | 0x80);
            left >>= 7;
        }
        message.push(left.to_le_bytes()[0]);
        message.extend_from_slice(service.as_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut framed = vec![0];
    framed.extend_from_slice(&length.to_be_bytes());
    framed.append(&mut message);
    framed
}

/// Decodes a response body: one framed `HealthCheckResponse` and nothing else. Never panics, allocates nothing, and takes
/// time proportional to the length.
pub fn decode(body: &[u8]) -> Result<ServingStatus, BadHealth> {
    let (&[compressed, a, b, c, d], message) = body.split_first_chunk().ok_or(BadHealth::Truncated)?;
    if compressed != 0 {
        return Err(BadHealth::Compressed);
    }
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if message.len() < length {
        return Err(BadHealth::Truncated);
    }
    if message.len() > length {
        return Err(BadHealth::Trailing);
    }
    status(message)
}

/// The field `status` of an unframed message. As protobuf requires, the last value counts and unknown fields are skipped.
fn status(mut message: &[u8]) -> Result<ServingStatus, BadHealth> {
    let mut health = ServingStatus::Unknown;
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        let (field, kind) = (tag >> 3, tag & 7);
        match (field, kind) {
            (1, 0) => health = ServingStatus::new(varint(&mut message)?),
            (0 | 1, _) => return Err(BadHealth::Field(field)),
            (_, 0) => _ = varint(&mut message)?,
            (_, 1) => skip(&mut message, 8)?,
            (_, 2) => {
                let length = varint(&mut message)?;
                skip(&mut message, length)?;
            }
            (_, 5) => skip(&mut message, 4)?,
            // Groups, which proto3 does not have, and unknown wire types.
            _ => return Err(BadHealth::Field(field)),
        }
    }
    Ok(health)
}

fn skip(bytes: &mut &[u8], count: u64) -> Result<(), BadHealth> {
    let count = usize::try_from(count).map_err(|_| BadHealth::Truncated)?;
    *bytes = bytes.get(count..).ok_or(BadHealth::Truncated)?;
    Ok(())
}

fn varint(bytes: &mut &[u8]) -> Result<u64, BadHealth> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(BadHealth::Truncated)?;
        *bytes = rest;
        // The tenth byte can hold one bit only.
        if shift == 63 && byte > 1 {
            return Err(BadHealth::Overlong);
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(BadHealth::Overlong)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(message);
        bytes
    }

    #[test]
    fn a_request_is_what_the_reference_encoder_writes() {
        assert_eq!(encode(""), [0, 0, 0, 0, 0]);
        assert_eq!(encode("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let long = encode(&"x".repeat(300));
        assert_eq!(long[..8], [0, 0, 0, 1, 47, 0x0a, 0xac, 0x02]);
    }

    #[test]
    fn an_answer_is_read_strictly() {
        let ten = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        let table: &[(&[u8], Result<ServingStatus, BadHealth>)] = &[
            (&[], Ok(ServingStatus::Unknown)),
            (&[8, 1], Ok(ServingStatus::Serving)),
            (&[8, 2], Ok(ServingStatus::NotServing)),
            (&[8, 3], Ok(ServingStatus::ServiceUnknown)),
            (&[8, 9], Ok(ServingStatus::Other(9))),
            // An overlong varint is legal, and so is a repeated status: the last one counts.
            (&[8, 0x81, 0], Ok(ServingStatus::Serving)),
            (&[8, 1, 8, 2], Ok(ServingStatus::NotServing)),
            // Unknown fields: varint, 64 bits, bytes, 32 bits.
            (
                &[16, 5, 25, 0, 0, 0, 0, 0, 0, 0, 0, 34, 2, 8, 2, 45, 0, 0, 0, 0, 8, 1],
                Ok(ServingStatus::Serving),
            ),
            (&[8], Err(BadHealth::Truncated)),
            (&[8, 0x81], Err(BadHealth::Truncated)),
            (&[34, 9, 1], Err(BadHealth::Truncated)),
            (&ten, Err(BadHealth::Overlong)),
            (&[0, 1], Err(BadHealth::Field(0))),
            (&[10, 1, 1], Err(BadHealth::Field(1))),
            (&[19, 20], Err(BadHealth::Field(2))),
        ];
        for (message, expected) in table {
            assert_eq!(decode(&framed(message)), *expected, "{message:?}");
        }
    }

    #[test]
    fn a_frame_is_read_strictly() {
        let table: &[(&[u8], BadHealth)] = &[
            (&[], BadHealth::Truncated),
            (&[0, 0, 0, 0], BadHealth::Truncated),
            (&[0, 0, 0, 0, 2, 8], BadHealth::Truncated),
            (&[0, 0xff, 0xff, 0xff, 0xff, 8, 1], BadHealth::Truncated),
            (&[0, 0, 0, 0, 2, 8, 1, 0], BadHealth::Trailing),
            (&[1, 0, 0, 0, 2, 8, 1], BadHealth::Compressed),
        ];
        for (body, expected) in table {
            assert_eq!(decode(body), Err(*expected), "{body:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn no_bytes_break_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            // Decoding the frame must give the same result as decoding the message alone.
            prop_assert_eq!(decode(&framed(&bytes)), status(&bytes));
            prop_assert!(bytes.len() >= 5 || decode(&bytes) == Err(BadHealth::Truncated));
        }

        #[test]
        fn every_proper_prefix_of_an_answer_is_truncated(number in any::<u64>(), cut in 0usize..16) {
            let mut message = vec![8];
            let mut left = number;
            while left >= 0x80 {
                message.push(u8::try_from(left & 0x7f).unwrap() | 0x80);
                left >>= 7;
            }
            message.push(u8::try_from(left).unwrap());
            let whole = framed(&message);
            prop_assert_eq!(decode(&whole), Ok(ServingStatus::new(number)));
            prop_assert_eq!(decode(&whole[..cut.min(whole.len() - 1)]), Err(BadHealth::Truncated));
        }
    }
}
