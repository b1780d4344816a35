//! The command-line arguments of `rouse controller`: --check-config, --dry-run, --output, and a flag for each setting.

use clap::Args;
use rouse_config::settings::{Flags, HasTable, SettingsTable, ShowFormat};

use super::settings::TABLE;

/// `rouse controller`, as a command with settings.
#[derive(Debug)]
pub struct ControllerCommand;

impl HasTable for ControllerCommand {
    const TABLE: &'static SettingsTable = &TABLE;
}

/// `rouse controller`.
#[derive(Debug, Clone, Default, Args)]
pub struct ControllerArgs {
    /// Check all settings, open the certificates, print each setting with its value and where it comes from, and exit
    #[arg(long)]
    pub check_config: bool,
    /// Print which workloads would be scaled, by which policy, and which would not and why; change nothing, and exit
    #[arg(long, conflicts_with = "check_config")]
    pub dry_run: bool,
    /// The output format of --check-config and --dry-run
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: ShowFormat,
    /// The settings that are given as flags.
    #[command(flatten)]
    pub flags: Flags<ControllerCommand>,
}
