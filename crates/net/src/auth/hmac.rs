//! Signs requests with a shared key (HMAC-SHA256), and reads and verifies such signatures.
//!
//! The header is `Authorization: Rouse-HMAC key=ID,timestamp=UNIX_SECONDS,nonce=HEX,signature=HEX`, with these four parts in
//! this order. The nonce has 32 hexadecimal digits, the signature 64, all in lower case. What is signed is the key id, the
//! method, the path, the timestamp, the nonce and the SHA-256 digest of the body in hexadecimal, with a newline between each.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac::{Context, HMAC_SHA256, Key, Tag};

use super::KeyScope;
use super::nonces::Nonce;

/// The name of the scheme in the header.
pub(super) const SCHEME: &str = "Rouse-HMAC";
/// A shorter secret could be guessed.
const LEAST_SECRET_BYTES: usize = 32;
const MOST_ID_BYTES: usize = 64;

/// A secret that a gateway and pods share. Its `Debug` output does not contain the secret.
#[derive(Clone)]
pub struct SharedKey {
    id: Box<str>,
    key: Key,
    scope: KeyScope,
}

/// Why a key cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSharedKey {
    /// The id is empty, too long, or has a character that is not allowed.
    #[error("the id of a key must be 1 to {MOST_ID_BYTES} letters, digits, '.', '-' and '_'")]
    Id,
    /// The secret is too short.
    #[error("the secret has fewer than {LEAST_SECRET_BYTES} bytes")]
    Short,
}

/// What is signed.
#[derive(Clone, Copy)]
pub(super) struct SignedRequest<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) body: &'a [u8],
}

/// The parts of the header, not verified. It has no `Debug`: a signature is a credential.
pub struct HmacCredential<'a> {
    pub(super) key_id: &'a str,
    timestamp_text: &'a str,
    nonce_text: &'a str,
    pub(super) timestamp: u64,
    pub(super) nonce: Nonce,
    signature: [u8; 32],
}

impl fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedKey").field("id", &self.id).field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl SharedKey {
    /// The key `id` with the bytes of `secret`, for the namespaces of `scope`. A signer needs no scope: [`KeyScope::All`].
    pub fn new(id: &str, secret: &[u8], scope: KeyScope) -> Result<Self, BadSharedKey> {
        if !is_key_id(id) {
            return Err(BadSharedKey::Id);
        }
        if secret.len() < LEAST_SECRET_BYTES {
            return Err(BadSharedKey::Short);
        }
        Ok(Self { id: id.into(), key: Key::new(HMAC_SHA256, secret), scope })
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The namespaces that it is for.
    pub fn scope(&self) -> &KeyScope {
        &self.scope
    }

    /// The value of the `Authorization` header of a request. `path` is the path of the request with its query, if it has one;
    /// `timestamp` is Unix time in seconds. Each request needs a random nonce of its own, also when it is sent again.
    pub fn sign(&self, method: &str, path: &str, body: &[u8], timestamp: u64, nonce: [u8; 16]) -> String {
        let (timestamp, nonce) = (timestamp.to_string(), hex(&nonce));
        let tag = self.tag(SignedRequest { method, path, body }, &timestamp, &nonce);
        format!(
            "{SCHEME} key={},timestamp={timestamp},nonce={nonce},signature={}",
            self.id,
            hex(tag.as_ref())
        )
    }

    /// Whether the signature is this key's, for this request. The comparison takes the same time for every signature.
    pub(super) fn verifies(&self, credential: &HmacCredential<'_>, request: SignedRequest<'_>) -> bool {
        let tag = self.tag(request, credential.timestamp_text, credential.nonce_text);
        verify_slices_are_equal(tag.as_ref(), &credential.signature).is_ok()
    }

    fn tag(&self, request: SignedRequest<'_>, timestamp: &str, nonce: &str) -> Tag {
        let body = hex(digest(&SHA256, request.body).as_ref());
        let mut context = Context::with_key(&self.key);
        for part in [&self.id, request.method, request.path, timestamp, nonce] {
            context.update(part.as_bytes());
            context.update(b"\n");
        }
        context.update(body.as_bytes());
        context.sign()
    }
}

/// Reads the value of an `Authorization` header after `Rouse-HMAC `. There is one way to write each value.
pub fn parse_hmac_credential(parameters: &[u8]) -> Option<HmacCredential<'_>> {
    let text = str::from_utf8(parameters).ok()?;
    let mut parts = text.split(',');
    let mut part = |name: &str| parts.next()?.strip_prefix(name)?.strip_prefix('=');
    let (key_id, timestamp_text) = (part("key")?, part("timestamp")?);
    let (nonce_text, signature) = (part("nonce")?, part("signature")?);
    let digits = timestamp_text.bytes().all(|byte| byte.is_ascii_digit());
    if parts.next().is_some() || !is_key_id(key_id) || !digits || timestamp_text.starts_with('0') {
        return None;
    }
    Some(HmacCredential {
        key_id,
        timestamp_text,
        nonce_text,
        timestamp: timestamp_text.parse().ok()?,
        nonce: unhex(nonce_text)?,
        signature: unhex(signature)?,
    })
}

/// Such names are also valid for the entries of a Kubernetes Secret.
pub(super) fn is_key_id(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=MOST_ID_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

fn hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(nibble + if nibble < 10 { b'0' } else { b'a' - 10 });
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn key() -> SharedKey {
        SharedKey::new("2026-01", SECRET, KeyScope::All).unwrap()
    }

    fn parameters(header: &str) -> Option<HmacCredential<'_>> {
        parse_hmac_credential(header.strip_prefix("Rouse-HMAC ")?.as_bytes())
    }

    /// The expected value was computed with `openssl dgst -sha256 -hmac`.
    #[test]
    fn the_signature_is_hmac_sha256_of_the_documented_text() {
        let header = key().sign("POST", "/v1/registrations", b"{}", 1_700_000_000, [0xab; 16]);
        let expected = "Rouse-HMAC key=2026-01,timestamp=1700000000,nonce=abababababababababababababababab,\
                        signature=67f7b296eaeb01f70529f9315573805daee979b313039de0edca97f61c749e28";
        assert_eq!(header, expected);
    }

    #[test]
    fn a_header_has_one_spelling() {
        let good = key().sign("POST", "/", b"", 1_700_000_000, [0xab; 16]);
        assert!(parameters(&good).is_some());
        for (part, replacement) in [
            ("key=2026-01", "key="),
            ("key=2026-01", "key=a b"),
            ("key=2026-01", "key=2026\n01"),
            ("timestamp=1", "timestamp=+1"),
            ("timestamp=1", "timestamp=01"),
            ("timestamp=1700000000", "timestamp="),
            ("timestamp=1700000000", "timestamp=99999999999999999999"),
            ("nonce=ab", "nonce=AB"),
            ("nonce=ab", "nonce="),
            ("nonce=ab", "nonce=abab"),
            ("nonce=ab", "nonce=ag"),
            ("nonce=ab", "nonce=a"),
            (",signature=", ",signature=00"),
            (",nonce", ", nonce"),
            (",nonce", ",extra=1,nonce"),
            ("key=2026-01,timestamp=1700000000", "timestamp=1700000000,key=2026-01"),
        ] {
            let changed = good.replace(part, replacement);
            assert_ne!(changed, good);
            assert!(parameters(&changed).is_none(), "{changed}");
        }
        assert!(parameters(&format!("{good},more=1")).is_none());
        assert!(parameters(&format!("{good} ")).is_none());
    }

    #[test]
    fn ids_and_secrets_that_cannot_be_used_are_refused() {
        let long = "k".repeat(65);
        for id in ["", "a/b", "a b", "a,b", "ä", "a\n", long.as_str()] {
            assert_eq!(SharedKey::new(id, SECRET, KeyScope::All).unwrap_err(), BadSharedKey::Id, "{id:?}");
        }
        assert_eq!(SharedKey::new("k", &SECRET[1..], KeyScope::All).unwrap_err(), BadSharedKey::Short);
    }

    proptest! {
        #[test]
        fn what_is_signed_is_read_back_and_verified(
            path in "/[ -~]{0,20}", body in any::<Vec<u8>>(), timestamp in 1..u64::MAX, nonce in any::<[u8; 16]>()
        ) {
            let header = key().sign("POST", &path, &body, timestamp, nonce);
            let credential = parameters(&header).unwrap();
            prop_assert_eq!((credential.timestamp, credential.nonce), (timestamp, nonce));
            let request = SignedRequest { method: "POST", path: &path, body: &body };
            prop_assert!(key().verifies(&credential, request));
            let other = SharedKey::new("2026-01", &[7; 32], KeyScope::All).unwrap();
            prop_assert!(!other.verifies(&credential, request));
        }

        #[test]
        fn no_byte_sequence_panics(bytes in any::<Vec<u8>>()) {
            let _ = parse_hmac_credential(&bytes);
        }
    }
}
