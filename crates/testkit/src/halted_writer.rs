//! A writer that blocks like a halted terminal, until the test releases it.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Keeps what is written. Each write blocks until the other end of its gate sends or is dropped.
pub struct HaltedWriter {
    gate: Receiver<()>,
    text: Arc<Mutex<Vec<u8>>>,
}

impl HaltedWriter {
    /// The writer, its gate, and what it has written.
    pub fn new() -> (Self, SyncSender<()>, Arc<Mutex<Vec<u8>>>) {
        let (open, gate) = sync_channel(1);
        let text = Arc::<Mutex<Vec<u8>>>::default();
        (Self { gate, text: Arc::clone(&text) }, open, text)
    }
}

impl Write for HaltedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.gate.recv().ok();
        self.text.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
