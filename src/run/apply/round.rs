//! A planner is asked, one round at a time, and what it wants becomes steps.

use crate::agent::{Mind, Provider};
use crate::expression::Template;
use crate::fields::{Fields, Flaws};
use crate::json::{self, Json, Value};
use crate::plan::{self, Action, OnFailure, OnReject, OnTimeout};
use crate::run::event::{Event, PlanCompleted, PlannedCall, Purpose, Try};
use crate::run::log::{Corrupt, Recorded};
use crate::run::round::{Called, Round, Summary, nobody_was_asked};
use crate::run::state::{PlannerEnd, State};
use crate::run::step::{Ask, Phase, Step};

use super::Entry;

impl State {
    pub(super) fn request_round(
        &mut self,
        entry: &Entry,
        recorded: &Recorded,
    ) -> Result<(), Corrupt> {
        let Event::PlanRequested {
            round,
            after_seq,
            summarises,
        } = recorded.event
        else {
            return Ok(());
        };
        if entry.step != Some(self.steps.len() as u32) {
            return Err(entry.corrupt("a round is no step, or not the next one"));
        }
        let name = match self.agent.mind() {
            Some(Mind::Model(planner)) => planner.models.first().map(|model| model.name.clone()),
            Some(Mind::Http(planner)) => Some(planner.target.url.clone()),
            None => return Err(entry.corrupt("a round of a run that has none")),
        };
        if let Some(last) = self.rounds.last_mut() {
            last.followed_at.get_or_insert(entry.at);
        }
        let id = match summarises {
            Some(_) => format!("summary-{}", self.steps.len()),
            None => format!("round-{round}"),
        };
        let mut step = Step::new(id, "plan", name);
        step.ask = Some(Ask {
            round,
            after_seq,
            summarises,
            idempotency_key: recorded.idempotency_key(&self.identity.run_id),
            at: entry.at,
            seq: entry.seq,
        });
        step.phase = Phase::Ready { since: entry.at };
        self.steps.push(step);
        Ok(())
    }

    pub(super) fn apply_round(&mut self, entry: &Entry, event: &Event) -> Result<(), Corrupt> {
        let at = entry.at;
        match event {
            Event::PlanClaimed {
                attempt,
                token,
                lease_until,
            } => {
                self.step_mut(entry)?.attempt = *attempt;
                self.hold(entry, *token, *lease_until, Purpose::Call)?;
            }
            Event::PlanLeaseExtended { token, lease_until } => {
                self.hold_longer(entry, *token, *lease_until)?;
            }
            Event::PlanLeaseExpired { losses, .. } => self.lose_holder(entry, *losses)?,
            Event::PlanRetryScheduled {
                error,
                wait_ms,
                retry_at,
                tries,
                ..
            } => {
                self.count(tries);
                let step = self.step_mut(entry)?;
                let (code, message) = (error.status_code, &error.message);
                step.note(at, "retry_scheduled", code, Some(message));
                step.losses = 0;
                if nobody_was_asked(tries) {
                    step.rests = step.rests.saturating_add(1);
                    step.attempt = step.attempt.saturating_sub(1);
                }
                step.previous_wait_ms = Some(*wait_ms);
                step.error = Some(error.clone());
                step.phase = Phase::Retrying {
                    since: at,
                    at: *retry_at,
                };
            }
            Event::PlanCompleted(completed) if entry.step.is_none() => {
                let output = completed.output.clone().unwrap_or_else(Json::null);
                self.planner_end = Some(PlannerEnd::Completed { output });
            }
            Event::PlanCompleted(completed) => self.complete_round(entry, completed)?,
            Event::PlanFailed(failed) if entry.step.is_none() => {
                let message = failed.message.clone();
                self.planner_end = Some(PlannerEnd::Failed { message });
            }
            Event::PlanFailed(failed) => {
                self.count(&failed.tries);
                let step = self.step_mut(entry)?;
                let code = failed.error.as_ref().and_then(|error| error.status_code);
                step.note(at, "failed", code, Some(&failed.message));
                step.losses = 0;
                step.error.clone_from(&failed.error);
                step.phase = Phase::Failed;
            }
            _ => return Err(entry.corrupt("an entry of a kind that is not of a round")),
        }
        Ok(())
    }

    fn complete_round(&mut self, entry: &Entry, completed: &PlanCompleted) -> Result<(), Corrupt> {
        self.count(&completed.tries);
        let step = self.step_mut(entry)?;
        let number = step.ask.as_ref().map_or(0, |ask| ask.round);
        step.note(entry.at, "completed", None, None);
        let summarises = step.ask.as_ref().and_then(|ask| ask.summarises);
        let text = completed.text.clone().map(Value::String);
        step.finish(Phase::Completed, Json::new(text.unwrap_or(Value::Null)));
        if let Some(rounds) = summarises {
            self.sum_up(rounds.to_round, completed.text.clone().unwrap_or_default());
            return Ok(());
        }
        let mut calls = Vec::with_capacity(completed.calls.len());
        for (place, call) in completed.calls.iter().enumerate() {
            let mut step_index = None;
            if let Some(intent) = &call.intent {
                let id = format!("round-{number}.{}", place.saturating_add(1));
                let planned = planned(id, call, intent).map_err(|e| entry.corrupt(&e))?;
                let (kind, name) = (planned.action.kind(), planned.action.name());
                let mut step = Step::new(planned.id.clone(), kind, name);
                step.intent = Some(Box::new(planned));
                step.flaw.clone_from(&call.error);
                step_index = Some(self.steps.len() as u32);
                self.steps.push(step);
            }
            calls.push(Called {
                id: call.id.clone(),
                name: call.name.clone(),
                arguments: call.arguments.clone(),
                step_index,
                error: call.error.clone(),
            });
        }
        let last = completed.tries.last();
        let answered = last.map(|t| t.provider.as_str());
        let provider = Provider::ALL
            .into_iter()
            .find(|provider| Some(provider.as_str()) == answered);
        self.rounds.push(Round {
            number,
            step_index: entry.step_index()?,
            provider,
            model: last.map(|t| t.model.clone()).unwrap_or_default(),
            answer: completed.answer.clone(),
            text: completed.text.clone(),
            calls,
            flaw: completed.flaw.clone(),
            completed_at: entry.at,
            followed_at: None,
        });
        if let Some(output) = completed.output.clone() {
            self.planner_end = Some(PlannerEnd::Completed { output });
        }
        Ok(())
    }

    /// From here on the text stands for these rounds; the log has them all.
    fn sum_up(&mut self, to_round: u32, text: String) {
        for round in self.rounds.iter_mut().filter(|r| r.number <= to_round) {
            round.answer = None;
            round.text = None;
            round.flaw = None;
            round.calls = Vec::new();
        }
        self.summary = Some(Summary { to_round, text });
        // The next request is shorter than the one that was summed up.
        self.tokens.last = 0;
    }

    fn count(&mut self, tries: &[Try]) {
        for t in tries {
            if t.provider != "http" {
                self.model_calls = self.model_calls.saturating_add(1);
            }
            let tokens = &mut self.tokens;
            tokens.input = tokens.input.saturating_add(t.input_tokens);
            tokens.output = tokens.output.saturating_add(t.output_tokens);
            tokens.last = t.input_tokens.saturating_add(t.output_tokens);
        }
    }

    pub(super) fn raise(&mut self, entry: &Entry, limits: &Json) -> Result<(), Corrupt> {
        let mut flaws = Flaws::default();
        let mut raised = self.limits;
        if let Some(given) = Fields::of(limits, "", &mut flaws) {
            raised.read_over(&given, &mut flaws);
        }
        self.limits = flaws
            .none_in(raised)
            .map_err(|flaws| entry.corrupt(&json::sentence(&flaws)))?;
        self.reached = None;
        Ok(())
    }
}

/// What a planner wanted, as a step of a plan. Its failure is news for the planner and does not end
/// the run; what could not be carried out as it is, is a person's matter.
fn planned(id: String, call: &PlannedCall, intent: &Json) -> Result<plan::Step, String> {
    if let Some(tool) = intent.get("tool").and_then(Value::as_str) {
        let arguments = intent.get("arguments").unwrap_or(&call.arguments).clone();
        return Ok(plan::Step {
            id,
            action: Action::Tool {
                tool: tool.to_owned(),
                arguments: Template::of_literal(arguments),
            },
            needs: Vec::new(),
            when: None,
            timeout_ms: None,
            on_timeout: OnTimeout::Fail,
            on_failure: match call.error {
                Some(_) => OnFailure::DeadLetter,
                None => OnFailure::Continue,
            },
            on_reject: OnReject::Continue,
        });
    }
    let mut step = Value::clone(intent);
    if let Some(members) = step.as_object_mut() {
        members.insert("id".to_owned(), Value::String(id));
    }
    let step = plan::parse_intent(&step).map_err(|flaws| json::sentence(&flaws))?;
    Ok(plan::Step {
        on_failure: OnFailure::Continue,
        on_reject: OnReject::Continue,
        ..step
    })
}
