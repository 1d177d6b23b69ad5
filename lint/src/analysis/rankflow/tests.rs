//! The work of the analysis grows with the program, and deep or long programs come to an end.

use std::fmt::Write as _;

use super::Counted;
use crate::analysis::{Program, SAMPLES, entries, plan};
use crate::linter::{Input, Source, load};
use crate::table::Table;

fn with_program<R>(text: &str, body: impl FnOnce(&Program<'_>) -> R) -> R {
    let source = Source { path: "main.py".into(), text: text.into(), reported: true, error: None };
    let (project, crashes) = load(Input { sources: vec![source], ..Input::default() });
    assert_eq!(crashes, []);
    let planned = plan(&project, &entries(&project));
    body(&Program::new(&project, Table::built_in(), &planned[0]))
}

const HEAD: &str = "import sys\nimport torch\nimport torch.distributed as dist\n";

/// Functions that test ranks and switches, loop, and call each other in small families.
fn project_of(n_functions: usize) -> String {
    let mut text = String::from(HEAD);
    for index in (0..n_functions).rev() {
        let _ = write!(
            text,
            "def f{index}(t):\n    \
             if dist.get_rank() == 0 and '--a{index}' in sys.argv:\n        print({index})\n    \
             for step in range(10):\n        if step == {index}:\n            return\n        \
             dist.all_reduce(t)\n"
        );
        if index % 5 != 4 && index + 1 < n_functions {
            let _ = writeln!(text, "    f{}(t)", index + 1);
        }
    }
    text.push_str("dist.init_process_group('gloo')\nt = torch.ones(1)\n");
    for index in (0..n_functions).step_by(5) {
        let _ = writeln!(text, "f{index}(t)");
    }
    text
}

/// Statements run, and nodes that rank flow looked at.
fn work(text: &str) -> (u64, usize) {
    with_program(text, |program| {
        let run = program.run_on(program.tree(), SAMPLES[0], Counted::Collectives);
        assert!(!run.is_cut);
        (program.n_steps(), run.n_nodes)
    })
}

#[test]
fn ten_times_the_functions_take_at_most_twelve_times_the_work() {
    let (small, large) = (work(&project_of(40)), work(&project_of(400)));
    assert!(small.0 > 400 && small.1 > 100, "{small:?}");
    assert!(large.0 <= 12 * small.0, "statements: {small:?} {large:?}");
    assert!(large.1 <= 12 * small.1, "nodes: {small:?} {large:?}");
}

#[test]
fn a_collective_below_five_hundred_calls_is_seen() {
    let mut text = String::from(HEAD);
    text.push_str("def f500():\n    dist.barrier()\n");
    for index in (0..500).rev() {
        let _ = write!(text, "def f{index}():\n    f{}()\n", index + 1);
    }
    text.push_str("dist.init_process_group('gloo')\nif dist.get_rank() == 0:\n    f0()\n");
    with_program(&text, |program| assert_eq!(program.divergences().len(), 1));
}

#[test]
fn five_thousand_branches_come_to_an_end() {
    let mut text = String::from(HEAD);
    text.push_str("def f(t):\n    total = 0\n");
    for index in 0..5000 {
        let _ = write!(text, "    if '--a{index}' in sys.argv:\n        total += {index}\n");
    }
    text.push_str("    if dist.get_rank() == 0:\n        dist.all_reduce(t)\n");
    text.push_str("dist.init_process_group('gloo')\nf(torch.ones(1))\n");
    with_program(&text, |program| {
        assert_eq!(program.divergences().len(), 1);
        assert!(program.n_steps() < 50_000, "{}", program.n_steps());
    });
}

#[test]
fn five_thousand_early_returns_come_to_an_end() {
    let mut text = String::from(HEAD);
    text.push_str("def f(t):\n");
    for index in 0..5000 {
        let _ = write!(text, "    if '--a{index}' in sys.argv:\n        return {index}\n");
    }
    text.push_str("    if dist.get_rank() == 0:\n        dist.all_reduce(t)\n");
    text.push_str("dist.init_process_group('gloo')\nf(torch.ones(1))\n");
    with_program(&text, |program| {
        assert_eq!(program.divergences().len(), 1);
        assert!(program.n_steps() < 50_000, "{}", program.n_steps());
    });
}
