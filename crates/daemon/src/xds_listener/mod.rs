//! The listener for Envoys, which two roles share: its settings, its certificate, and the server that answers.

pub(crate) mod files;
pub mod settings;
