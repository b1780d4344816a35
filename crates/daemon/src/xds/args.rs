//! The command-line arguments of `rouse xds`: --check-config, --output, and a flag for each setting.

use clap::Args;
use rouse_config::settings::{Flags, HasTable, SettingsTable, ShowFormat};

use super::settings::TABLE;

/// `rouse xds`, as a command with settings.
#[derive(Debug)]
pub struct XdsRoleCommand;

impl HasTable for XdsRoleCommand {
    const TABLE: &'static SettingsTable = &TABLE;
}

/// `rouse xds`.
#[derive(Debug, Clone, Default, Args)]
pub struct XdsArgs {
    /// Check all settings, open the certificates, print each setting with its value and where it comes from, and exit
    #[arg(long)]
    pub check_config: bool,
    /// The output format of --check-config
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t, requires = "check_config")]
    pub output: ShowFormat,
    /// The settings that are given as flags.
    #[command(flatten)]
    pub flags: Flags<XdsRoleCommand>,
}
