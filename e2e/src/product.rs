//! The `rouse` binary, built as `rouse-under-test` so that cargo gives tests its path.

use std::process::ExitCode;

fn main() -> ExitCode {
    rouse_cli::main()
}
