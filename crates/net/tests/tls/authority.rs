//! Makes certificates.

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rouse_net::tls::{Identity, Pem};

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

pub(crate) struct Leaf {
    pub(crate) chain: String,
    pub(crate) key: String,
    /// The certificate itself.
    pub(crate) der: Vec<u8>,
}

impl Authority {
    /// All by this have the same name, as after a change of keys.
    pub(crate) fn new() -> Self {
        Self::named("authority of a test")
    }

    pub(crate) fn named(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn ca(&self) -> Pem {
        pem(&self.0.pem())
    }

    pub(crate) fn leaf(&self, names: &[&str]) -> Leaf {
        self.leaf_by(names, &KeyPair::generate().unwrap(), |_| {})
    }

    /// A certificate whose time was, or will be.
    pub(crate) fn leaf_of(&self, names: &[&str], years: [i32; 2]) -> Leaf {
        self.leaf_by(names, &KeyPair::generate().unwrap(), |params| {
            params.not_before = rcgen::date_time_ymd(years[0], 1, 1);
            params.not_after = rcgen::date_time_ymd(years[1], 1, 1);
        })
    }

    pub(crate) fn leaf_by(
        &self,
        names: &[&str],
        key: &KeyPair,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Leaf {
        let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let certificate = params.signed_by(key, &self.0).unwrap();
        Leaf { chain: certificate.pem(), key: key.serialize_pem(), der: certificate.der().to_vec() }
    }
}

impl Leaf {
    pub(crate) fn identity(&self) -> Identity {
        Identity { chain: pem(&self.chain), key: pem(&self.key) }
    }

    /// Into `tls.crt` and `tls.key`.
    pub(crate) fn write(&self, folder: &Path) -> Identity {
        let (chain, key) = (folder.join("tls.crt"), folder.join("tls.key"));
        fs::write(&chain, &self.chain).unwrap();
        fs::write(&key, &self.key).unwrap();
        Identity { chain: Pem::File(chain), key: Pem::File(key) }
    }
}

pub(crate) fn pem(text: &str) -> Pem {
    Pem::Bytes(text.as_bytes().into())
}

/// What a PKCS#8 key holds inside, the older form of the same key, as PEM.
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
