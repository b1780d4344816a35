//! Parses the parts of an HTTP/1 line: tokens, header names and values, lengths and chunk sizes.

use super::Violation;

/// Which bytes a token consists of.
const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0u8;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+')
            || matches!(byte, b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~');
        byte += 1;
    }
    table
};

pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| TOKEN[usize::from(*byte)])
}

/// The value without the white space around it.
pub(super) fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// A header or trailer line as its name and its trimmed value.
pub(super) fn split(line: &[u8]) -> Result<(&[u8], &[u8]), Violation> {
    if let [b' ' | b'\t', ..] = line {
        return Err(Violation::Folded);
    }
    // A simple loop: names are too short for memchr to be faster.
    let colon = line.iter().position(|byte| !TOKEN[usize::from(*byte)]).ok_or(Violation::HeaderName)?;
    let (name, rest) = line.split_at(colon);
    let (false, [b':', value @ ..]) = (name.is_empty(), rest) else {
        return Err(no_cr(line, Violation::HeaderName));
    };
    // No early exit, so that the compiler checks many bytes at a time.
    let is_bad = |byte: u8| (byte < b' ' && byte != b'\t') || byte == 0x7f;
    let bad = value.iter().fold(0, |bad, byte| bad | u8::from(is_bad(*byte)));
    if bad != 0 { Err(no_cr(value, Violation::HeaderValue)) } else { Ok((name, trim(value))) }
}

/// Reports a bare CR in `line`, if there is one, instead of the violation that it caused.
pub(super) fn no_cr(line: &[u8], otherwise: Violation) -> Violation {
    if line.contains(&b'\r') { Violation::BareCr } else { otherwise }
}

/// Whether a comma-separated list has a name that `fits`.
pub(super) fn lists(value: &[u8], fits: impl Fn(&[u8]) -> bool) -> bool {
    value.split(|byte| *byte == b',').any(|name| fits(trim(name)))
}

/// Parses a length in bytes. It must fit a signed 64-bit number: a pod may parse it as one, and overflow.
pub(super) fn length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit).filter(|sum| i64::try_from(*sum).is_ok())
    })
}

/// Parses the line of a chunk and returns the chunk's size. `extension` limits the bytes of its extensions.
pub(super) fn chunk(line: &[u8], extension: usize) -> Result<u64, Violation> {
    let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (size, rest) = line.split_at(digits);
    if !matches!(rest, [] | [b';', ..]) || !(1..=16).contains(&digits) {
        return Err(no_cr(line, Violation::ChunkSize));
    }
    if rest.len() > extension {
        return Err(Violation::ChunkLine);
    }
    if !rest.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~')) {
        return Err(no_cr(rest, Violation::ChunkExtension));
    }
    let size = str::from_utf8(size).ok().and_then(|size| u64::from_str_radix(size, 16).ok());
    size.filter(|size| i64::try_from(*size).is_ok()).ok_or(Violation::ChunkSize)
}
