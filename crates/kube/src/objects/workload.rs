//! A reference to a workload: something with a `scale` subresource.

use std::fmt;
use std::sync::Arc;

/// Something with a `scale` subresource, in the namespace of its route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Workload {
    /// Empty for the core group.
    pub group: Arc<str>,
    /// Its version.
    pub version: Arc<str>,
    /// Its kind.
    pub kind: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl Workload {
    pub(crate) const EXPECTED: &str = "a workload like apps/v1/Deployment/name";

    /// `None` if these cannot be the names of a workload. They become part of a request to the API server, so they
    /// must not be able to ask for something else.
    pub fn new(api_version: &str, kind: &str, name: &str) -> Option<Self> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let fits = (group.is_empty() || is_object_name(group))
            && plain(version)
            && plain(kind)
            && is_object_name(name);
        fits.then(|| Self {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            name: name.into(),
        })
    }

    /// Reads `apps/v1/Deployment/name`.
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, name) = text.rsplit_once('/')?;
        let (api_version, kind) = rest.rsplit_once('/')?;
        Self::new(api_version, kind, name)
    }

    /// Whether both are the same object, in any version of its API.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.group, &self.kind, &self.name) == (&other.group, &other.kind, &other.name)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// Whether `text` may be the name of an object: a DNS subdomain.
pub(crate) fn is_object_name(text: &str) -> bool {
    let label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_read_and_nothing_else_can_be_asked_for_by_its_name() {
        let cart = Workload::parse("apps/v1/Deployment/cart").unwrap();
        assert_eq!(
            (&*cart.group, &*cart.version, &*cart.kind, &*cart.name),
            ("apps", "v1", "Deployment", "cart")
        );
        assert_eq!(&*Workload::parse("v1/ReplicationController/cart.1").unwrap().group, "");
        for bad in [
            "",
            "cart",
            "Deployment/cart",
            "apps/v1/Deployment/",
            "apps/v1/Deployment/..",
            "a/b/v1/Deployment/x",
            "apps/v1/Deployment/x?y",
            "apps/v1/../x",
            "../v1/Deployment/x",
            "apps/v1/Deployment/X",
            "apps/v1/Deployment/-x",
        ] {
            assert_eq!(Workload::parse(bad), None, "{bad}");
        }
    }
}
