//! The log of a test.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, Once};

use tracing::Level;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// What the current thread logs, a line per event.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn capture() -> (Self, DefaultGuard) {
        Self::capture_up_to(Level::INFO)
    }

    pub(crate) fn capture_up_to(level: Level) -> (Self, DefaultGuard) {
        // If a thread without a subscriber is the first to reach an event while there is only one
        // subscriber, `tracing` disables the event for all threads.
        static GLOBAL: Once = Once::new();
        GLOBAL.call_once(|| {
            let sink = tracing_subscriber::fmt().with_writer(io::sink).finish();
            tracing::subscriber::set_global_default(sink).expect("nobody else has set one");
        });
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(log.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn events(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
