//! Checks combinations of the settings of `rouse xds`.

use rouse_config::settings::{SettingsDiagnostics, Values};

use super::settings::{ADMIN, XDS_LISTEN};
use crate::listeners::overlap;
use crate::xds_listener;

/// Reports settings that contradict each other or have no effect.
pub(super) fn together(values: &Values, reading: &mut SettingsDiagnostics) {
    if reading.is_certain_of(&[&ADMIN, &XDS_LISTEN]) {
        let all = [(&ADMIN as _, values.get(&ADMIN)), (&XDS_LISTEN as _, values.get(&XDS_LISTEN))];
        overlap(&all, values, reading);
    }
    xds_listener::settings::together(values, (&XDS_LISTEN, Some(values.get(&XDS_LISTEN))), reading);
}
