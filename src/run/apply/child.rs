//! A child run is wanted, begins, ends, is called off.

use crate::run::event::{ChildStatus, Event};
use crate::run::log::Corrupt;
use crate::run::state::State;
use crate::run::step::{Child, Phase};
use crate::words::{RunId, Timestamp};

use super::Entry;

impl State {
    pub(super) fn apply_child(&mut self, entry: &Entry, event: &Event) -> Result<(), Corrupt> {
        let stranger = || entry.corrupt("an entry of a child run that the step did not ask for");
        let step = self.step_mut(entry)?;
        match event {
            Event::ChildRequested {
                run_id,
                agent,
                input,
                tokens,
            } => {
                let replaced = step.unfinished_child(entry.at);
                step.child = Some(Child {
                    run_id: run_id.clone(),
                    agent: agent.clone(),
                    input: input.clone(),
                    tokens: *tokens,
                    tokens_used: 0,
                    requested_at: entry.at,
                    started: false,
                    ended: None,
                });
                step.phase = Phase::AwaitingChild;
                self.call_off(replaced);
            }
            Event::ChildStarted { run_id, agent } => {
                let child = step.child_mut(run_id).ok_or_else(stranger)?;
                child.started = true;
                child.agent.clone_from(agent);
            }
            Event::ChildEnded {
                run_id,
                status,
                output,
                tokens,
                ..
            } => {
                let child = step.child_mut(run_id).ok_or_else(stranger)?;
                child.ended = Some(*status);
                // One that was retried by hand reports its end again, and all that it has used.
                let more = tokens.saturating_sub(child.tokens_used);
                child.tokens_used = *tokens;
                let awaited = step.phase == Phase::AwaitingChild;
                if awaited && *status == ChildStatus::Completed {
                    step.finish(Phase::Completed, output.clone());
                }
                self.tokens.children = self.tokens.children.saturating_add(more);
            }
            _ => {}
        }
        Ok(())
    }

    /// A child that failed may have been retried by hand, so it is called off like one that never
    /// ended.
    pub(super) fn call_children_off(&mut self, entry: &Entry) {
        let children: Vec<_> = self
            .steps
            .iter()
            .filter_map(|step| step.unfinished_child(entry.at))
            .collect();
        for child in children {
            self.call_off(Some(child));
        }
    }

    pub(super) fn call_off(&mut self, child: Option<(RunId, Timestamp)>) {
        let known = |run_id: &RunId| self.called_off.iter().any(|(known, _)| known == run_id);
        if let Some(child) = child.filter(|(run_id, _)| !known(run_id)) {
            self.called_off.push(child);
        }
    }
}
