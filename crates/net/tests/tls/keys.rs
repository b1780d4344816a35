//! Private keys in formats older than PKCS#8.

use rouse_testkit::certificates::rcgen::KeyPair;

/// The key inside a PKCS#8 key, in its older format, as PEM.
pub(crate) fn older_form(key: &KeyPair, label: &str) -> String {
    let whole = key.serialize_der();
    let (sequence, _) = value(&whole);
    let (_version, rest) = value(sequence);
    let (_algorithm, rest) = value(rest);
    let (inner, _) = value(rest);
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", base64(inner))
}

/// The first DER value's contents, and what follows it.
fn value(der: &[u8]) -> (&[u8], &[u8]) {
    let (start, length) = match der[1] {
        short @ ..0x80 => (2, usize::from(short)),
        long => {
            let bytes = &der[2..2 + usize::from(long & 0x7f)];
            (2 + bytes.len(), bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)))
        }
    };
    der[start..].split_at(length)
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().enumerate().fold(0u32, |bits, (at, &byte)| bits | u32::from(byte) << (16 - 8 * at));
        for at in 0..4 {
            let digit = char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize]);
            text.push(if at <= group.len() { digit } else { '=' });
        }
        if text.len() % 65 == 64 {
            text.push('\n');
        }
    }
    text
}
