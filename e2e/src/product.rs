//! The `rouse` binary, as the tests run it.

use std::process::ExitCode;

fn main() -> ExitCode {
    rouse_cli::main()
}
