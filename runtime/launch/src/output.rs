//! Where a rank's lines go: to the console with their rank before them, to its log files as
//! they are, and into its tail for the report.

use std::fs::File;
use std::io;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::cli::{Args, Streams};
use crate::environment::Seat;
use crate::folder;
use crate::lines::{End, Lines, Tail};
use crate::sink::{Sink, Stream};
use crate::trouble::Trouble;

/// Bytes read from a rank at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// How often a wait for the writers looks whether it should go on.
const FINISH_STEP: Duration = Duration::from_millis(100);

/// How lines are shown and kept; the same for all attempts.
pub(crate) struct Routes {
    redirects: Streams,
    tee: Streams,
    filter: Vec<usize>,
    prefix: Prefix,
    /// A table shows what progress bars say; as lines they would only scroll.
    live: bool,
}

enum Prefix {
    None,
    Rank,
    /// torchrun's `TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE`.
    Template(String),
}

impl Routes {
    pub(crate) fn new(args: &Args, template: Option<&str>, live: bool) -> Self {
        let to_folder = if args.log_dir.is_some() && args.redirects.is_none() { 3 } else { 0 };
        let prefix = match template {
            _ if args.no_prefix => Prefix::None,
            Some(template) => Prefix::Template(template.to_owned()),
            None => Prefix::Rank,
        };
        Self {
            redirects: args.redirects.clone().unwrap_or(Streams::All(0)),
            tee: args.tee.clone().unwrap_or(Streams::All(to_folder)),
            filter: args.local_ranks_filter.clone(),
            prefix,
            live,
        }
    }

    /// Whether any stream is to be kept in a file.
    pub(crate) fn any_file(&self) -> bool {
        self.redirects.any() || self.tee.any()
    }

    fn to_console(&self, local_rank: usize, stream: Stream) -> bool {
        let shown = self.filter.is_empty() || self.filter.contains(&local_rank);
        shown && !self.redirects.covers(local_rank, stream.bit())
    }

    fn to_file(&self, local_rank: usize, stream: Stream) -> bool {
        self.redirects.covers(local_rank, stream.bit()) || self.tee.covers(local_rank, stream.bit())
    }

    fn prefix(&self, seat: &Seat, role: &str) -> Option<Vec<u8>> {
        match &self.prefix {
            Prefix::None => None,
            Prefix::Rank => Some(format!("[rank {}] ", seat.rank).into_bytes()),
            Prefix::Template(template) => Some(
                template
                    .replace("${role_name}", role)
                    .replace("${rank}", &seat.rank.to_string())
                    .replace("${local_rank}", &seat.local_rank.to_string())
                    .into_bytes(),
            ),
        }
    }
}

/// The writers.
pub(crate) struct Output {
    pub console: Sink,
    logs: Sink,
    problems: Receiver<String>,
    n_files: usize,
    /// Lines of this turn, per stream, sent together.
    batch: [Vec<u8>; 2],
    chunk: Vec<u8>,
}

impl Output {
    pub(crate) fn new() -> Self {
        let (logs, problems) = Sink::logs();
        Self {
            console: Sink::console(),
            logs,
            problems,
            n_files: 0,
            batch: [Vec::new(), Vec::new()],
            chunk: vec![0; CHUNK_BYTES],
        }
    }

    /// Whether the ranks must wait until what they wrote has been written.
    pub(crate) fn is_full(&self) -> bool {
        self.console.is_full() || self.logs.is_full()
    }

    /// A message of the launcher itself.
    pub(crate) fn say(&mut self, text: &str) {
        self.flush();
        let mut lines = String::new();
        for (at, line) in text.lines().enumerate() {
            lines.push_str(if at == 0 { "ddp-run: " } else { "  " });
            lines.push_str(line);
            lines.push('\n');
        }
        self.console.lines(Stream::Err, lines.into_bytes());
    }

    /// Sends what has come together, and shows what went wrong with log files.
    pub(crate) fn flush(&mut self) {
        self.console.lines(Stream::Out, std::mem::take(&mut self.batch[0]));
        self.console.lines(Stream::Err, std::mem::take(&mut self.batch[1]));
        while let Ok(problem) = self.problems.try_recv() {
            self.console.lines(Stream::Err, format!("ddp-run: {problem}\n").into_bytes());
        }
    }

    /// Waits until all is written. The readers of the console and the log files may take their
    /// time (a pager, a slow file server) until `hurry` says that someone wants to leave.
    pub(crate) fn finish(&mut self, mut hurry: impl FnMut() -> bool) {
        self.flush();
        self.console.panel(Vec::new());
        let mut wait = |done: Receiver<()>| {
            while done.recv_timeout(FINISH_STEP) == Err(RecvTimeoutError::Timeout) {
                if hurry() {
                    // One more step: what only needed a moment still arrives.
                    let _ = done.recv_timeout(FINISH_STEP);
                    return;
                }
            }
        };
        wait(self.logs.finish());
        while let Ok(problem) = self.problems.try_recv() {
            self.console.lines(Stream::Err, format!("ddp-run: {problem}\n").into_bytes());
        }
        wait(self.console.finish());
    }
}

/// One stream of one rank.
pub(crate) struct Feed<P> {
    pub pipe: Option<P>,
    stream: Stream,
    lines: Lines,
    shown: Shown,
    file: Option<usize>,
}

/// What of a stream the console shows, and how.
struct Shown {
    lines: bool,
    bars: bool,
    prefix: Option<Vec<u8>>,
}

impl<P: Read> Feed<P> {
    /// Opens the stream's log file in the rank's folder, if it is to have one; the pipe comes
    /// when the rank runs.
    pub(crate) fn open(
        stream: Stream,
        seat: &Seat,
        role: &str,
        routes: &Routes,
        folder: Option<&Path>,
        output: &mut Output,
    ) -> Result<Self, Trouble> {
        let mut file = None;
        if let Some(folder) = folder
            && routes.to_file(seat.local_rank, stream)
        {
            let name = if stream == Stream::Out { "stdout.log" } else { "stderr.log" };
            let path = folder.join(name);
            let opened = File::create(&path).map_err(|error| folder::cannot_make(&path, &error))?;
            output.n_files += 1;
            output.logs.open(output.n_files, path, opened);
            file = Some(output.n_files);
        }
        Ok(Self {
            pipe: None,
            stream,
            lines: Lines::default(),
            shown: Shown {
                lines: routes.to_console(seat.local_rank, stream),
                bars: !routes.live,
                prefix: routes.prefix(seat, role),
            },
            file,
        })
    }

    /// Whether the stream is kept in a log file.
    pub(crate) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Reads once; the pipe must be readable or this waits. At the end of the stream the pipe
    /// is closed.
    pub(crate) fn read(&mut self, output: &mut Output, tail: &mut Tail) {
        let Some(pipe) = &mut self.pipe else { return };
        let mut chunk = std::mem::take(&mut output.chunk);
        match pipe.read(&mut chunk) {
            Ok(0) => self.close(output, tail),
            Ok(count) => self.take(&chunk[..count], output, tail),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.close(output, tail),
        }
        output.chunk = chunk;
    }

    fn take(&mut self, bytes: &[u8], output: &mut Output, tail: &mut Tail) {
        if let Some(file) = self.file {
            output.logs.log(file, bytes.to_vec());
        }
        let batch = &mut output.batch[self.stream as usize];
        let (lines, shown) = (&mut self.lines, &self.shown);
        lines.push(bytes, |line, end| {
            tail.push(line, end);
            show(batch, shown, line, end);
        });
    }

    /// Ends the stream: an unfinished last line is shown as one.
    pub(crate) fn close(&mut self, output: &mut Output, tail: &mut Tail) {
        self.pipe = None;
        let batch = &mut output.batch[self.stream as usize];
        let (lines, shown) = (&mut self.lines, &self.shown);
        lines.finish(|line, end| {
            tail.push(line, end);
            show(batch, shown, line, end);
        });
        if let Some(file) = self.file.take() {
            output.logs.close(file);
        }
    }
}

/// Appends a line. With a prefix each piece is a line of its own; without one, progress bars
/// and pieces of long lines stay what they are.
fn show(batch: &mut Vec<u8>, shown: &Shown, line: &[u8], end: End) {
    if !shown.lines || (end == End::Return && !shown.bars) {
        return;
    }
    let prefix = shown.prefix.as_deref();
    batch.extend_from_slice(prefix.unwrap_or_default());
    batch.extend_from_slice(line);
    match end {
        End::Return if prefix.is_none() => batch.push(b'\r'),
        End::Cut if prefix.is_none() => {}
        _ => batch.push(b'\n'),
    }
}
