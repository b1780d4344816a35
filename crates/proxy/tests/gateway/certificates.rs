//! Certificates of testkit as TLS settings.

use rouse_net::tls::{Identity, Pem};
use rouse_testkit::certificates;

pub(crate) struct Authority(certificates::Authority);

impl Authority {
    pub(crate) fn new() -> Self {
        Self(certificates::Authority::new())
    }

    pub(crate) fn ca(&self) -> Pem {
        self.0.ca()
    }

    pub(crate) fn leaf(&self, names: &[&str]) -> Identity {
        self.0.leaf(names).identity()
    }

    /// A certificate that is valid from one year to the other.
    pub(crate) fn leaf_of(&self, names: &[&str], years: [i32; 2]) -> Identity {
        self.0.leaf_of(names, years).identity()
    }
}
