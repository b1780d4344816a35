//! The tokio runtime for test binaries with their own harness.

use std::io;

/// Runs a test to its end, on two worker threads like the `#[tokio::test]`s.
pub fn block_on(test: impl Future<Output = ()>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(test);
    Ok(())
}
