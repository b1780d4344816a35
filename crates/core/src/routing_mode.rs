//! Routing modes: whether requests go directly to a pod or through the `ClusterIP` of its Service.

/// When requests go directly to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum RoutingMode {
    /// Never: as soon as a pod is ready, requests go through the `ClusterIP`.
    Disabled,
    /// Until the `ClusterIP` has accepted a connection.
    ColdStartOnly,
    /// Whenever an endpoint offers the port.
    #[default]
    Always,
}

impl RoutingMode {
    /// The name of each mode in settings and annotations.
    pub const WORDS: &[(&str, Self)] =
        &[("disabled", Self::Disabled), ("cold-start-only", Self::ColdStartOnly), ("always", Self::Always)];

    /// The mode with this name.
    pub fn from_word(word: &str) -> Option<Self> {
        let found = Self::WORDS.iter().find(|(known, _)| *known == word);
        found.map(|(_, mode)| *mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_has_its_word_and_no_other_text_is_a_mode() {
        assert_eq!(RoutingMode::from_word("cold-start-only"), Some(RoutingMode::ColdStartOnly));
        assert_eq!(RoutingMode::from_word("Always"), None);
    }
}
