//! The certificates that the settings name, opened: a file that is not there keeps a gateway from starting, and
//! `--check-config` from being content.

use rouse_net::tls::Warning;

use super::certificates::{self, Certificates};
use super::upstream::Upstreams;
use crate::gateway::settings::Settings;
use crate::gateway::sources::{Origin, Problem, Problems};

/// What was in the files.
#[derive(Debug, Default)]
pub(in crate::gateway) struct Opened {
    /// What the TLS doors show, if there are any.
    pub(super) certificates: Option<Certificates>,
    /// What is odd about the roots of pods' certificates.
    pub(super) warnings: Vec<Warning>,
}

impl Opened {
    /// What is odd about any of them.
    pub(in crate::gateway) fn warnings(&self) -> impl Iterator<Item = &Warning> {
        self.certificates.iter().flat_map(|certificates| &certificates.warnings).chain(&self.warnings)
    }
}

/// Opens them all, and tells of all that cannot be.
pub(in crate::gateway) fn open(settings: &Settings) -> Result<Opened, Problems> {
    let problem = |setting: &str, what: String| match settings.origin(setting) {
        // A flag says which setting it is; a place in a file does not, nor do all variables of KEDA's.
        Some(flag @ Origin::Flag(_)) => Problem { origin: flag.clone(), what },
        other => {
            Problem { origin: other.cloned().unwrap_or(Origin::Default), what: format!("{setting}: {what}") }
        }
    };
    let mut problems = Vec::new();
    let certificates = certificates::open(&settings.tls).unwrap_or_else(|refused| {
        problems.push(problem(refused.setting, refused.what));
        None
    });
    let mut opened = Opened { certificates, warnings: Vec::new() };
    // With keda-compat the doors' certificates are roots, too: what is wrong with one is told once.
    for (setting, read) in Upstreams::read_roots(settings) {
        match read {
            Ok(warnings) => {
                let new: Vec<_> =
                    warnings.into_iter().filter(|new| opened.warnings().all(|told| told != new)).collect();
                opened.warnings.extend(new);
            }
            Err(error) => {
                let new = problem(setting, error.to_string());
                if !problems.contains(&new) {
                    problems.push(new);
                }
            }
        }
    }
    Problems::none_in(problems, Some(opened))
}
