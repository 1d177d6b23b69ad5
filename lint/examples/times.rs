//! Prints what the time of a run goes into, on one thread, for each folder given:
//! `cargo run --profile quick -p ddp-lint --example times -- [--programs] PATH ..`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ddp_lint::analysis::{self, Program};
use ddp_lint::config::Settings;
use ddp_lint::driver::{self, Request};
use ddp_lint::linter::{self, Input, Source};
use ddp_lint::table::Table;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[expect(clippy::print_stdout, reason = "printing is what it is for")]
fn main() {
    let (flags, folders): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let tells_programs = flags.iter().any(|flag| flag == "--programs");
    let threads = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread");
    threads.install(|| {
        let (_, table) = timed(Table::built_in);
        println!("table of names: {:.1} ms", ms(table));
        println!(
            "{:>6} {:>8} {:>5} {:>5} | {:>7} {:>7} {:>6} {:>7} {:>7} {:>7} | {:>9}  folder",
            "files",
            "lines",
            "progs",
            "run",
            "load",
            "lower",
            "plan",
            "follow",
            "rules",
            "all",
            "steps"
        );
        for folder in folders {
            of_folder(&folder, tells_programs);
        }
    });
}

/// Times in ms: finding, reading and lowering all files; lowering alone; finding the programs;
/// following them; the rules over them; all.
#[expect(clippy::print_stdout, reason = "printing is what it is for")]
fn of_folder(folder: &str, tells_programs: bool) {
    let path = std::fs::canonicalize(folder).unwrap_or_else(|_| PathBuf::from(folder));
    let request = Request { paths: vec![path], ..Request::default() };
    let (workspace, load) = timed(|| driver::load(&request));
    for loaded in &workspace.projects {
        let sources = loaded.project.files.iter().map(|file| Source {
            path: file.path.clone(),
            text: file.text.clone(),
            reported: file.reported,
            error: None,
        });
        let input = Input { sources: sources.collect(), ..Input::default() };
        let (_, lower) = timed(|| linter::load(input));
        let project = &loaded.project;
        let (planned, plan) = timed(|| analysis::plan(project, &analysis::entries(project)));
        let (mut follow, mut steps) = (Duration::ZERO, 0);
        for planned in &planned {
            let (program, took) = timed(|| Program::new(project, Table::built_in(), planned));
            follow += took;
            steps += program.n_steps();
            if tells_programs && planned.is_parallel {
                let name = planned.entry.file.map_or("library", |f| &project.file(f).path);
                println!(
                    "{:>8.1} ms {:>8} steps {:>7} events {:>4} files  {name}",
                    ms(took),
                    program.n_steps(),
                    program.events().len(),
                    planned.files.len()
                );
            }
        }
        let settings = Settings::default();
        let (_, lint) = timed(|| linter::lint(project, &|_| &settings));
        let n_lines: usize = project.files.iter().map(|file| file.text.lines().count()).sum();
        println!(
            "{:>6} {:>8} {:>5} {:>5} | {:>7.1} {:>7.1} {:>6.1} {:>7.1} {:>7.1} {:>7.1} | {:>9}  {}",
            project.files.len(),
            n_lines,
            planned.len(),
            planned.iter().filter(|planned| planned.is_parallel).count(),
            ms(load),
            ms(lower),
            ms(plan),
            ms(follow),
            ms(lint.saturating_sub(plan + follow)),
            ms(load + lint),
            steps,
            folder
        );
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let done = work();
    (done, began.elapsed())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
