//! The `rouse` binary. It only calls the library `rouse_cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rouse_cli::main()
}
