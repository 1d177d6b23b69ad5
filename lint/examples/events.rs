//! Prints what the analysis sees: `cargo run -p ddp-lint --example events -- PATH ..`.

use std::path::Path;
use std::sync::Arc;

use ddp_lint::analysis::{self, Program, dump};
use ddp_lint::linter::{self, Input, Source};
use ddp_lint::table::Table;

#[expect(clippy::print_stdout, reason = "printing is what it is for")]
fn main() {
    let mut sources = Vec::new();
    for argument in std::env::args().skip(1) {
        collect(Path::new(&argument), &mut sources);
    }
    let (project, crashes) = linter::load(Input { sources, ..Input::default() });
    for crash in crashes {
        println!("{crash}");
    }
    let entries = analysis::entries(&project);
    for planned in analysis::plan(&project, &entries) {
        let program = Program::new(&project, Table::built_in(), &planned);
        let name = planned.entry.file.map_or("library", |f| &project.file(f).path);
        println!("== {name}: distributed {}", program.is_distributed());
        println!("{}", dump::events(&program));
    }
}

fn collect(path: &Path, sources: &mut Vec<Source>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            collect(&entry.path(), sources);
        }
        return;
    }
    let name = path.to_string_lossy().into_owned();
    if linter::language_of(&name).is_some()
        && let Ok(text) = std::fs::read_to_string(path)
    {
        sources.push(Source { path: name, text: Arc::from(text), reported: true, error: None });
    }
}
