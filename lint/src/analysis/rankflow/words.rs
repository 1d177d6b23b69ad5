//! Sequences of steps in words, for messages.

use super::Ahead;
use crate::analysis::{EventId, ExitKind, Program};
use crate::model::Site;
use crate::table::Role;

impl Program<'_> {
    /// What a step is called: the callee's name.
    pub fn step_name(&self, event: EventId) -> String {
        let event = self.event(event);
        if let Some(call) = event.call() {
            if call.role == Role::WrapDdp {
                return "DistributedDataParallel(..)".to_owned();
            }
            if let Some(name) = call.name {
                return name.rsplit('.').next().unwrap_or(&name).to_owned();
            }
        }
        self.callee_text(event).unwrap_or("a collective").to_owned()
    }

    /// A place as seen from another one: `line 12`, or `log.py:12` in another file.
    pub fn place_text(&self, site: Site, near: Site) -> String {
        let line = self.line_of(site);
        if site.file == near.file {
            format!("line {line}")
        } else {
            format!("{}:{line}", self.project().file(site.file).path)
        }
    }

    /// A step with its place: `all_reduce in line 12`.
    pub fn step_text(&self, event: EventId, near: Site) -> String {
        let place = self.place_text(self.event(event).site, near);
        format!("{} in {place}", self.step_name(event))
    }

    /// What ranks do one after the other, with places.
    pub fn sequence_text(&self, steps: &[Ahead], near: Site) -> String {
        let words = steps.iter().map(|step| match step {
            Ahead::Does(event) => self.step_text(*event, near),
            Ahead::Leaves(ExitKind::Break) => "out of the loop".to_owned(),
            Ahead::Leaves(ExitKind::Stop) => "the end of the process".to_owned(),
            Ahead::Leaves(_) => "out of the function".to_owned(),
        });
        let mut words: Vec<String> = words.collect();
        words.dedup();
        if words.is_empty() { "nothing more".to_owned() } else { words.join(", ") }
    }
}
