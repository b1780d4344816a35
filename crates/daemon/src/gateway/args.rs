//! The command-line arguments of `rouse gateway`: --config, --check-config, --output, and a flag for each setting.

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
    /// Check all settings, open the certificates, print each setting with its value and where it comes from, and exit
    #[arg(long)]
    pub check_config: bool,
    /// The output format of --check-config
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t, requires = "check_config")]
    pub output: ShowFormat,
    /// The settings that are given as flags.
    #[command(flatten)]
    pub flags: Flags<GatewayCommand>,
}
