//! The settings of load reports: where the controllers are, and how this gateway proves who it is.

use std::path::{Path, PathBuf};

use rouse_config::settings::{Group, Setting, SettingKind};
use rouse_grpc::report::client::ControllerUrl;

use super::FILE;

pub(super) static REPORTS: Group =
    Group { title: "Load reports", settings: &[&REPORT_TO, &REPORT_CA, &REPORT_TOKEN] };

/// `--report-to`.
pub static REPORT_TO: Setting<Option<ControllerUrl>> = Setting::optional(
    "report-to",
    &ControllerUrlText,
    "none: no load is reported",
    "The URL of the controllers' report port: load is reported to every address of its host",
);

/// `--report-ca`.
pub static REPORT_CA: Setting<Option<PathBuf>> = Setting::optional(
    "report-ca",
    &FILE,
    "the roots of the system",
    "A PEM file with the CAs of the controllers' certificates; it may hold two during a rotation",
);

/// `--report-token`.
pub static REPORT_TOKEN: Setting<PathBuf> = Setting::new(
    "report-token",
    &FILE,
    || "/var/run/secrets/rouse-report/token".into(),
    "The file with the ServiceAccount token of this pod for the audience rouse-report; it is read again for each connection",
);

/// `https://HOST:PORT`.
#[derive(Debug, Clone, Copy)]
pub struct ControllerUrlText;

impl SettingKind for ControllerUrlText {
    type Value = ControllerUrl;

    fn placeholder(&self) -> &'static str {
        "URL"
    }

    fn allowed(&self) -> String {
        "https://HOST:PORT, like https://rouse-controller.rouse-system.svc.cluster.local:9444".to_owned()
    }

    fn parse(&self, text: &str, _folder: &Path) -> Result<ControllerUrl, String> {
        text.parse().map_err(|_| self.allowed())
    }

    fn show(&self, url: &ControllerUrl) -> String {
        url.to_string()
    }
}
