//! Makes certificates.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rouse_net::tls::{Identity, Pem};

pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn ca(&self) -> Pem {
        pem(&self.0.pem())
    }

    pub(crate) fn leaf(&self, names: &[&str]) -> Identity {
        self.leaf_of(names, [2001, 2301])
    }

    /// A certificate whose time is from one year to the other.
    pub(crate) fn leaf_of(&self, names: &[&str], years: [i32; 2]) -> Identity {
        let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = rcgen::date_time_ymd(years[0], 1, 1);
        params.not_after = rcgen::date_time_ymd(years[1], 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity { chain: pem(&certificate.pem()), key: pem(&key.serialize_pem()) }
    }
}

fn pem(text: &str) -> Pem {
    Pem::Bytes(text.as_bytes().into())
}
