//! The worlds and classes of ranks that a tree tells apart. Ranks that decide every test of
//! the tree alike run alike; one of them stands for all.

use rustc_hash::FxHashSet;

use crate::analysis::{Const, Header, Node, Program, RankKind, SAMPLES, Sample, Taint, Term};
use crate::table::Role;

/// The sizes of one-node worlds that are compared beside the sample world.
const WORLD_SIZES: [i64; 3] = [2, 3, 4];

/// What a tree asks of ranks.
#[derive(Default)]
struct Tests {
    /// Conditions and bounds that a rank's number went into.
    terms: FxHashSet<Term>,
    /// Groups of some ranks are made, or roots chosen: each rank is a class of its own.
    by_number: bool,
    seen: FxHashSet<*const Node>,
}

impl Program<'_> {
    /// The ranks to compare, world by world; none where nothing hangs on a rank.
    pub(super) fn worlds(&self, tree: &[Node]) -> Vec<Vec<Sample>> {
        let mut tests = Tests::default();
        self.collect_tests(tree, &mut tests);
        if tests.terms.is_empty() && !tests.by_number {
            return Vec::new();
        }
        let mut worlds = vec![SAMPLES.to_vec()];
        for size in WORLD_SIZES {
            let ranks = (0..size).map(|rank| Sample::of_one_node(rank, size));
            worlds.push(self.one_of_each_class(ranks, &tests));
        }
        worlds.retain(|world| world.len() > 1);
        worlds
    }

    fn one_of_each_class(&self, ranks: impl Iterator<Item = Sample>, tests: &Tests) -> Vec<Sample> {
        if tests.by_number {
            return ranks.collect();
        }
        let mut seen: FxHashSet<Vec<Option<Const>>> = FxHashSet::default();
        ranks
            .filter(|&rank| {
                // Who decides differently may differ; what is undecided may hang on a number.
                let answers: Vec<Option<Const>> =
                    tests.terms.iter().map(|&t| self.terms().evaluate(t, rank)).collect();
                answers.iter().any(Option::is_none) || seen.insert(answers)
            })
            .collect()
    }

    fn collect_tests(&self, tree: &[Node], tests: &mut Tests) {
        let Some(first) = tree.first() else { return };
        if !tests.seen.insert(std::ptr::from_ref(first)) {
            return;
        }
        for node in tree {
            match node {
                Node::Event(event) => self.collect_of_event(*event, tests),
                Node::Branch { condition, then, otherwise, .. } => {
                    self.collect_term(*condition, tests);
                    self.collect_tests(then, tests);
                    self.collect_tests(otherwise, tests);
                }
                Node::Loop { header, body, .. } => {
                    match header {
                        Header::Over(value) => {
                            for alternative in &value.alternatives {
                                self.collect_term(alternative.when, tests);
                                self.collect_term(alternative.term, tests);
                            }
                        }
                        Header::While(condition) => self.collect_term(*condition, tests),
                        Header::Forever => {}
                    }
                    self.collect_tests(body, tests);
                }
                Node::Try { body, handlers, .. } => {
                    self.collect_tests(body, tests);
                    for handler in handlers {
                        self.collect_tests(&handler.body, tests);
                    }
                }
                Node::Call { body, .. } => self.collect_tests(body, tests),
                Node::Exit { .. } => {}
            }
        }
    }

    fn collect_of_event(&self, event: crate::analysis::EventId, tests: &mut Tests) {
        let Some(call) = self.event(event).call() else { return };
        let chooses = |name: &str| {
            call.argument(name)
                .known()
                .is_some_and(|a| a.value.taint(self.terms()).has(Taint::RANK))
        };
        tests.by_number |= match call.role {
            Role::NewGroup => call.argument("ranks").known().is_some(),
            Role::Collective => super::run::ROOTS.iter().any(|root| chooses(root)),
            _ => false,
        };
    }

    fn collect_term(&self, term: Term, tests: &mut Tests) {
        let terms = self.terms();
        if !terms.taint(term).has(Taint::RANK) {
            return;
        }
        let is_number = |t: Term| terms.rank_kind(t).is_some_and(RankKind::differs);
        if is_number(term) || !terms.is_huge(term) {
            tests.terms.insert(term);
        }
    }
}
