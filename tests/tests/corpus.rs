//! What the linter says about public repositories is what was read and judged by hand.

use std::collections::BTreeSet;

use ddp_lint::rules::RULES;
use ddp_tests::corpus::{self, FOLDER, Place, Row};

const TABLES: [&str; 2] = ["python", "rust"];

/// Nine of ten findings of level error or warning are right.
#[test]
fn nine_of_ten_findings_are_right() {
    for table in TABLES {
        let rows = corpus::table(table);
        let right = rows.iter().filter(|row| row.is_right).count();
        assert!(right * 10 >= rows.len() * 9, "{table}: {right} of {} are right", rows.len());
    }
}

#[test]
fn tables_are_sorted_and_name_rules() {
    for table in TABLES {
        let places: Vec<Place> = corpus::table(table).iter().map(Row::place).collect();
        assert!(places.is_sorted_by(|a, b| a < b), "{table}: not sorted, or a row twice");
        for (repository, path, line, rule) in places {
            let is_known = RULES.iter().any(|known| known.name == rule);
            assert!(is_known, "{table}: {repository} {path}:{line}: no rule `{rule}`");
        }
    }
}

/// Where the repositories are present: nothing is said that was not judged, and what was
/// judged right is still said.
#[test]
fn findings_are_those_that_were_judged() {
    let mut seen = 0;
    for table in TABLES {
        let rows = corpus::table(table);
        for repository in corpus::repositories(table) {
            let Some(folder) = corpus::folder(&repository) else { continue };
            seen += 1;
            let of_it = rows.iter().filter(|row| row.repository == repository);
            let judged: BTreeSet<Place> = of_it.map(Row::place).collect();
            let found = corpus::findings(&repository, &folder);
            let new: Vec<&Place> = found.difference(&judged).collect();
            let lost: Vec<&Place> = judged.difference(&found).collect();
            assert!(
                new.is_empty() && lost.is_empty(),
                "not judged: {new:#?}\nnot found: {lost:#?}"
            );
        }
    }
    if seen == 0 {
        eprintln!("skipped: {FOLDER} names no folder that holds the repositories");
    }
}
