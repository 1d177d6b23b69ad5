//! Threads that write, so that a stuck terminal or file server never keeps the launcher from
//! watching its ranks. Each takes messages in order and counts the bytes that wait.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

/// Bytes that may wait for a writer before the ranks have to.
const WAITING_BYTES_MAX: usize = 8 << 20;

/// A standard stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

impl Stream {
    /// Its bit in torchrun's stream masks.
    pub(crate) fn bit(self) -> u8 {
        match self {
            Self::Out => 1,
            Self::Err => 2,
        }
    }
}

enum Message {
    /// Lines for the console, each whole.
    Lines(Stream, Vec<u8>),
    /// The table below the lines; an empty one removes it.
    Panel(Vec<String>),
    /// A log file, known by its number from now on.
    Open(usize, PathBuf, File),
    /// Bytes for a log file.
    Log(usize, Vec<u8>),
    /// No more for this log file.
    Close(usize),
    End(Sender<()>),
}

/// A writing thread.
pub(crate) struct Sink {
    messages: Sender<Message>,
    waiting_bytes: Arc<AtomicUsize>,
}

impl Sink {
    /// The thread that owns standard output and error.
    pub(crate) fn console() -> Self {
        Self::start("console", Console::default())
    }

    /// The thread that owns the log files, and what went wrong with them.
    pub(crate) fn logs() -> (Self, Receiver<String>) {
        let (problems, receiver) = mpsc::channel();
        (Self::start("logs", Logs { files: HashMap::new(), problems }), receiver)
    }

    fn start(name: &str, mut writer: impl Writer + Send + 'static) -> Self {
        let (messages, receiver) = mpsc::channel();
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&waiting_bytes);
        let work = move || {
            for message in receiver {
                let size = size(&message);
                if let Message::End(done) = message {
                    let _ = done.send(());
                    return;
                }
                writer.take(message);
                counter.fetch_sub(size, Ordering::Relaxed);
            }
        };
        // Without a thread the messages go nowhere, but the run is still watched.
        let _ = thread::Builder::new().name(name.into()).spawn(work);
        Self { messages, waiting_bytes }
    }

    fn send(&self, message: Message) {
        let size = size(&message);
        self.waiting_bytes.fetch_add(size, Ordering::Relaxed);
        if self.messages.send(message).is_err() {
            self.waiting_bytes.fetch_sub(size, Ordering::Relaxed);
        }
    }

    /// Whether so much waits that nothing more should be read from the ranks.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting_bytes.load(Ordering::Relaxed) > WAITING_BYTES_MAX
    }

    pub(crate) fn lines(&self, stream: Stream, lines: Vec<u8>) {
        if !lines.is_empty() {
            self.send(Message::Lines(stream, lines));
        }
    }

    pub(crate) fn panel(&self, rows: Vec<String>) {
        self.send(Message::Panel(rows));
    }

    pub(crate) fn open(&self, number: usize, path: PathBuf, file: File) {
        self.send(Message::Open(number, path, file));
    }

    pub(crate) fn log(&self, number: usize, bytes: Vec<u8>) {
        self.send(Message::Log(number, bytes));
    }

    pub(crate) fn close(&self, number: usize) {
        self.send(Message::Close(number));
    }

    /// Asks the thread to end; what comes back tells when all is written.
    pub(crate) fn finish(&self) -> Receiver<()> {
        let (sender, done) = mpsc::channel();
        self.send(Message::End(sender));
        done
    }
}

fn size(message: &Message) -> usize {
    match message {
        Message::Lines(_, bytes) | Message::Log(_, bytes) => bytes.len(),
        _ => 0,
    }
}

trait Writer {
    fn take(&mut self, message: Message);
}

/// Standard output and error, and on a terminal the panel that stays below the lines.
#[derive(Default)]
struct Console {
    panel: Vec<String>,
    shown_rows: usize,
    closed: [bool; 2],
}

impl Writer for Console {
    fn take(&mut self, message: Message) {
        match message {
            Message::Lines(stream, lines) => {
                self.erase();
                self.write(stream, &lines);
                self.draw();
            }
            Message::Panel(rows) => {
                self.erase();
                self.panel = rows;
                self.draw();
            }
            _ => {}
        }
    }
}

impl Console {
    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let closed = &mut self.closed[stream as usize];
        if *closed {
            return;
        }
        // A reader that has gone (`| head`) is no reason to end the run.
        *closed = match stream {
            Stream::Out => write_all(&mut io::stdout().lock(), bytes),
            Stream::Err => write_all(&mut io::stderr().lock(), bytes),
        }
        .is_err();
    }

    /// Removes the panel: to its first row, and all below away.
    fn erase(&mut self) {
        if self.shown_rows > 0 {
            let up = format!("\r\x1b[{}A\x1b[J", self.shown_rows);
            self.write(Stream::Err, up.as_bytes());
            self.shown_rows = 0;
        }
    }

    fn draw(&mut self) {
        if !self.panel.is_empty() {
            // Without wrapping a row is a row, whatever the width of its letters.
            let text = format!("\x1b[?7l{}\r\n\x1b[?7h", self.panel.join("\r\n"));
            self.write(Stream::Err, text.as_bytes());
            self.shown_rows = self.panel.len();
        }
    }
}

fn write_all(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}

/// The log files of all ranks. A file that cannot be written is given up with one message: the
/// training is worth more than its log.
struct Logs {
    files: HashMap<usize, (PathBuf, File)>,
    problems: Sender<String>,
}

impl Writer for Logs {
    fn take(&mut self, message: Message) {
        match message {
            Message::Open(number, path, file) => {
                self.files.insert(number, (path, file));
            }
            Message::Log(number, bytes) => {
                let Some((path, file)) = self.files.get_mut(&number) else { return };
                if let Err(error) = file.write_all(&bytes) {
                    let _ = self.problems.send(format!(
                        "cannot write {}: {error}; the run goes on without this log",
                        path.display()
                    ));
                    self.files.remove(&number);
                }
            }
            Message::Close(number) => {
                self.files.remove(&number);
            }
            _ => {}
        }
    }
}
