//! Streams without a network, for the fuzz targets.

use std::collections::HashSet;
use std::time::Duration;

use rouse_core::time::Moment;

use super::cache::{ResourceCache, ResourceChange};
use super::delta::{DeltaStream, StreamBounds};
use super::resource_type::ResourceType;
use super::sotw::{SotwCall, SotwStream};
use super::stream::StreamRules as _;
use crate::proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};

const BOUNDS: StreamBounds = StreamBounds { names: 64, response: 64 };
const NAMES: [&str; 3] = ["a", "b", "c"];

/// One stream of each kind, over the same resources.
pub(crate) struct XdsStreams {
    cache: ResourceCache,
    now: Moment,
    delta: DeltaStream,
    world: SotwStream,
}

impl XdsStreams {
    pub(crate) fn new() -> Self {
        Self {
            cache: ResourceCache::with_log(4),
            now: Moment::ZERO,
            delta: DeltaStream::new(BOUNDS),
            world: SotwStream::new(SotwCall::Endpoints, BOUNDS),
        }
    }

    /// Sets a resource, or removes it if it has no content.
    pub(crate) fn change(&mut self, which: u8, content: &[u8]) -> bool {
        let at = |number: u8, of: usize| usize::from(number) % of;
        let kind = ResourceType::ALL.get(at(which, 4)).copied().unwrap_or(ResourceType::Endpoints);
        let name = NAMES.get(at(which / 4, 3)).copied().unwrap_or_default().into();
        let encoded = (!content.is_empty()).then(|| content.to_vec().into());
        self.cache.update([ResourceChange { kind, name, encoded }]);
        self.respond();
        true
    }

    pub(crate) fn delta_request(&mut self, request: DeltaDiscoveryRequest) -> bool {
        let taken = self.delta.request(request, &self.cache.view(), self.now).is_ok();
        self.respond();
        taken
    }

    pub(crate) fn world_request(&mut self, request: DiscoveryRequest) -> bool {
        let taken = self.world.request(request, &self.cache.view(), self.now).is_ok();
        self.respond();
        taken
    }

    fn respond(&mut self) {
        self.now = self.now + Duration::from_millis(500);
        let view = self.cache.view();
        for response in self.delta.respond(&view, self.now) {
            let mut names = HashSet::new();
            let all = response.resources.iter().map(|(name, _)| name).chain(&response.removed);
            for name in all.filter(|_| ResourceType::of_url(&response.url).is_some()) {
                debug_assert!(names.insert(name), "{name} is twice in one response");
            }
        }
        debug_assert!(self.delta.respond(&view, self.now).is_empty());
        self.world.respond(&view, self.now);
        debug_assert!(self.world.respond(&view, self.now).is_empty());
    }
}
