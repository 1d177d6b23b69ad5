//! Linting again after a change finds what linting anew finds.

use std::path::Path;
use std::sync::Arc;

use ddp_lint::config::Settings;
use ddp_lint::finding::Finding;
use ddp_lint::linter::{self, Input, Session, Source, language_of};
use ddp_lint::model::FileId;

/// The sources of the fixtures, as one project.
fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let mut sources = Vec::new();
    collect(&root, &root, &mut sources);
    assert!(!sources.is_empty(), "no fixtures below {}", root.display());
    sources
}

fn collect(folder: &Path, root: &Path, sources: &mut Vec<Source>) {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            collect(&path, root, sources);
        } else if language_of(&path.to_string_lossy()).is_some() {
            let text = std::fs::read_to_string(&path).expect("a text").into();
            let path = path.strip_prefix(root).expect("below the root");
            let path = path.to_string_lossy().replace('\\', "/");
            sources.push(Source { path, text, reported: true, error: None });
        }
    }
}

fn input(sources: &[Source]) -> Input {
    Input { sources: sources.to_vec(), ..Input::default() }
}

fn anew(sources: &[Source], settings: &Settings) -> Vec<Finding> {
    let (project, crashes) = linter::load(input(sources));
    assert!(crashes.is_empty(), "{crashes:?}");
    let outcome = linter::lint(&project, &|_| settings);
    assert!(outcome.crashes.is_empty(), "{:?}", outcome.crashes);
    outcome.findings
}

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Words that make and mend faults, change imports and break the syntax.
const WORDS: [&str; 18] = [
    "\n",
    "x",
    "(",
    ")",
    "\nimport torch\n",
    "\nmodel = torch.nn.DataParallel(model)\n",
    ".module",
    "\nif __name__ == \"__main__\":\n    main()\n",
    "  # ddp-lint: allow(unguarded-save)",
    "\nsys.path.append(\"x\")\n",
    "\nsys.path.append(\"density_after\")\n",
    "\nfrom model import *\n",
    "\nimport accelerate.state\n",
    "\nmp.spawn(main)\n",
    "\nmod other;\n",
    "\nfn main() {}\n",
    "rank",
    " = 0",
];

/// Deletes or inserts something somewhere, as typing does.
fn edit(text: &str, random: &mut Random) -> String {
    let boundaries: Vec<usize> =
        text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let start = random.below(boundaries.len());
    let length = if random.below(3) == 0 { random.below(40) } else { 0 };
    let end = (start + length).min(boundaries.len() - 1);
    let word = if length == 0 { WORDS[random.below(WORDS.len())] } else { "" };
    format!("{}{word}{}", &text[..boundaries[start]], &text[boundaries[end]..])
}

#[test]
fn a_thousand_random_edits_end_with_the_findings_of_a_fresh_run() {
    let settings = Settings::default();
    let mut sources = sources();
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    let (project, _) = linter::load(input(&sources));
    let mut session = Session::new(project);
    assert_eq!(session.lint(&|_| &settings).findings, anew(&sources, &settings));
    let originals: Vec<Arc<str>> = sources.iter().map(|source| source.text.clone()).collect();
    let mut random = Random(2_026);
    for round in 1..=1_000 {
        let file = random.below(sources.len());
        // Now and then the file is as it was, so that it does not rot to noise.
        let is_reset = random.below(5) == 0;
        let text = if is_reset {
            originals[file].clone()
        } else {
            edit(&sources[file].text, &mut random).into()
        };
        sources[file].text = text.clone();
        session.set_text(FileId(file as u32), text, None);
        let outcome = session.lint(&|_| &settings);
        assert!(outcome.crashes.is_empty(), "round {round}: {:?}", outcome.crashes);
        if round % 20 == 0 {
            assert_eq!(outcome.findings, anew(&sources, &settings), "round {round}");
        }
    }
}
