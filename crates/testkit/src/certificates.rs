//! Certificates for tests: a certificate authority and the leaf certificates that it issues.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test may panic, also in its helpers")]

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rouse_net::tls::{Identity, Pem};

/// The library that makes them, for tests that need a special key or certificate.
pub use rcgen;

/// A certificate authority with a key of its own.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A leaf certificate and its key.
#[derive(Debug)]
pub struct Leaf {
    /// The certificate in PEM.
    pub chain: String,
    /// Its key in PEM.
    pub key: String,
    /// The certificate in DER.
    pub der: Vec<u8>,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// All authorities made by this have the same name and different keys, as after a change of keys.
    pub fn new() -> Self {
        Self::named("test authority")
    }

    /// An authority called `name`.
    pub fn named(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate, in PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Its own certificate, as a setting of TLS.
    pub fn ca(&self) -> Pem {
        pem(&self.pem())
    }

    /// A certificate for `names`, valid now.
    pub fn leaf<N: AsRef<str>>(&self, names: &[N]) -> Leaf {
        self.leaf_by(names, &KeyPair::generate().unwrap(), |_| {})
    }

    /// A certificate that is valid from the start of the first year to the start of the second.
    pub fn leaf_of<N: AsRef<str>>(&self, names: &[N], years: [i32; 2]) -> Leaf {
        self.leaf_by(names, &KeyPair::generate().unwrap(), |params| {
            params.not_before = rcgen::date_time_ymd(years[0], 1, 1);
            params.not_after = rcgen::date_time_ymd(years[1], 1, 1);
        })
    }

    /// A certificate for a given key, after `change` has changed its parameters.
    pub fn leaf_by<N: AsRef<str>>(
        &self,
        names: &[N],
        key: &KeyPair,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Leaf {
        let mut params = params(names);
        change(&mut params);
        Leaf::of(&params.signed_by(key, &self.0).unwrap(), key)
    }
}

impl Leaf {
    /// A certificate that is its own authority.
    pub fn self_signed<N: AsRef<str>>(names: &[N]) -> Self {
        let key = KeyPair::generate().unwrap();
        Self::of(&params(names).self_signed(&key).unwrap(), &key)
    }

    /// The certificate and its key, as a setting of TLS.
    pub fn identity(&self) -> Identity {
        Identity { chain: pem(&self.chain), key: pem(&self.key) }
    }

    /// Writes both to `tls.crt` and `tls.key` in `folder`.
    pub fn write(&self, folder: &Path) -> Identity {
        let (chain, key) = (folder.join("tls.crt"), folder.join("tls.key"));
        fs::write(&chain, &self.chain).unwrap();
        fs::write(&key, &self.key).unwrap();
        Identity { chain: Pem::File(chain), key: Pem::File(key) }
    }

    fn of(certificate: &rcgen::Certificate, key: &KeyPair) -> Self {
        Self { chain: certificate.pem(), key: key.serialize_pem(), der: certificate.der().to_vec() }
    }
}

/// PEM that is not in a file, as a setting of TLS.
pub fn pem(text: &str) -> Pem {
    Pem::Bytes(text.as_bytes().into())
}

fn params<N: AsRef<str>>(names: &[N]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| name.as_ref().to_owned()).collect();
    CertificateParams::new(names).unwrap()
}
