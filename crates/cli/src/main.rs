//! The `rouse` binary. Everything it does is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    rouse_cli::main()
}
