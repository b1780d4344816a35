//! An `EndpointSlice`, reduced to what the feed needs.

use rouse_core::endpoint::{ServiceId, Slice};
use serde::Deserialize;

use crate::objects::EndpointSlice;
use crate::objects::routable_slice::{Unroutable, routable};

/// An `EndpointSlice`, reduced while it is parsed, so that a list of ten thousand is never whole in memory.
#[derive(Debug, Deserialize)]
#[serde(from = "EndpointSlice")]
pub(super) struct SliceFacts {
    /// `namespace/name`.
    pub(super) key: Box<str>,
    pub(super) name: String,
    /// The Service that it belongs to, if it names one.
    pub(super) home: Option<ServiceId>,
    pub(super) slice: Slice,
    /// Endpoints that cannot be routed to, or the reason for the whole slice.
    pub(super) faults: Vec<Unroutable>,
}

impl From<EndpointSlice> for SliceFacts {
    fn from(written: EndpointSlice) -> Self {
        let mut faults = Vec::new();
        let slice = routable(&written, &mut |fault| faults.push(fault));
        let namespace = written.metadata.namespace();
        let home = written.service_name().and_then(|name| ServiceId::new(namespace, name).ok());
        let key = format!("{namespace}/{}", written.metadata.name).into();
        Self { key, home, slice, faults, name: written.metadata.name }
    }
}

impl SliceFacts {
    /// The name that gets one warning at most: the Service or, without one, the slice.
    pub(super) fn whose(&self) -> String {
        self.home.as_ref().map_or_else(|| self.key.to_string(), ToString::to_string)
    }
}
