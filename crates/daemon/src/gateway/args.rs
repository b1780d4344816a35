//! The flags of `rouse gateway`: those of its table, and those about the configuration itself.

use std::path::PathBuf;

use clap::Args;
use rouse_config::settings::{Flags, HasTable, SettingsTable, ShowFormat};

use super::settings::TABLE;

/// `rouse gateway`, as a command with settings.
#[derive(Debug)]
pub struct GatewayCommand;

impl HasTable for GatewayCommand {
    const TABLE: &'static SettingsTable = &TABLE;
}

const CONFIG_HELP: &str =
    "A YAML file with settings: the flags below are its keys, without the dashes [env: ROUSE_CONFIG]";

/// `rouse gateway`.
#[derive(Debug, Clone, Default, Args)]
pub struct GatewayArgs {
    /// The file with settings.
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    pub config: Option<PathBuf>,
    /// Check all settings, open the certificates, show what each setting is and where it comes from, and do no more
    #[arg(long)]
    pub check_config: bool,
    /// How --check-config prints
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t, requires = "check_config")]
    pub output: ShowFormat,
    /// The settings that are given as flags.
    #[command(flatten)]
    pub flags: Flags<GatewayCommand>,
}
