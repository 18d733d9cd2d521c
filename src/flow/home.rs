//! A run's home: loads its log, decides, commits, and only then answers.
//!
//! Everything here is synchronous. Between reading the log and the commit nothing else can happen to
//! the run, and everything written in one turn is one commit of the platform.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::decide::{
    self, Claim, ClaimReply, Control, Input, Refusal, Reply, Settle, Turn, TurnedAway, decide,
};
use crate::outbox::{self, Sent};
use crate::ports::{Fault, Messages, Projection, RunAnswer, RunCall, RunOp, RunResult};
use crate::run::event::RunCreated;
use crate::run::{Corrupt, Identity, Phase, Row, State, diagnosis, fold, log, view};
use crate::words::limits::LIST_LIMIT_MAX;
use crate::words::{ApprovalId, RunId, TenantId, Timestamp};

use super::projection::projections;

#[cfg(feature = "test-seams")]
mod seams;

/// By how much an alarm may come too early to a run that rests.
const ALARM_IDLE_MS: i64 = 1_000;
/// An alarm that is later than this was forgotten by the platform.
const ALARM_LATE_MS: i64 = 3_000;
/// Why a child run was cancelled that its parent does not want any more.
const CALLED_OFF: &str = "its parent run ended or was called off";

/// Bytes of a log that a client is given at a time, and about as many are read for it.
pub const PAGE_BYTES_MAX: usize = 1_048_576;

/// Where a run's log is kept. Each method is one synchronous stretch.
pub trait LogStore {
    /// Every row, in order. Empty for a run that was never born, and then nothing is written.
    fn load(&self) -> Result<Vec<Row>, Fault>;
    /// The rows from the one that holds entry `seq` on: at most `limit`, and no more once they hold
    /// [`PAGE_BYTES_MAX`], but always one beside the first.
    fn page(&self, seq: u64, limit: usize) -> Result<Vec<Row>, Fault>;
    /// The rows up to the one that holds entry `seq`, in order: at most `limit`, the last ones, and
    /// no more once they hold [`PAGE_BYTES_MAX`], but always one beside the last.
    fn page_back(&self, seq: u64, limit: usize) -> Result<Vec<Row>, Fault>;
    /// Appends rows, all or none.
    fn append(&self, rows: &[Row]) -> Result<(), Fault>;
    /// Sets the alarm, in the same commit as the rows appended before.
    fn set_alarm(&self, at: Timestamp) -> Result<(), Fault>;
    fn clear_alarm(&self) -> Result<(), Fault>;
    /// Remembers that a run which does not exist yet is called off, and for whom.
    fn bar(&self, tenant_id: &TenantId, parent_run_id: &RunId) -> Result<(), Fault>;
    /// Whether the run was called off by this parent before it existed.
    fn is_barred(&self, tenant_id: &TenantId, parent_run_id: &RunId) -> Result<bool, Fault>;
    /// By how much a test has moved this run's clock.
    fn clock_offset_ms(&self) -> i64 {
        0
    }
    fn set_clock_offset_ms(&self, _ms: i64) -> Result<(), Fault> {
        Ok(())
    }
}

/// What a run's object keeps in memory. All of it may be lost at any time.
#[derive(Default)]
pub struct Home {
    state: Option<State>,
    sent: Sent,
    /// When the alarm is set for, if this instance set it.
    alarm: Option<Timestamp>,
    /// The log's length that the tenant's index was told of, if this instance told it.
    projected_seq: u64,
    /// Deliveries turned away while their step was held.
    suppressed: BTreeMap<u32, u32>,
    pub counts: Counts,
    /// Messages that a test wants sent once more.
    #[cfg(feature = "test-seams")]
    copies: Vec<String>,
}

/// Platform operations since this instance began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub calls: u64,
    pub commits: u64,
    pub rows_written: u64,
    pub alarms_set: u64,
    pub alarms_fired: u64,
    pub plan_messages: u64,
    pub work_messages: u64,
    pub projections: u64,
    pub duplicates_suppressed: u64,
}

/// What is to be done now that the turn is committed.
pub struct Outcome {
    pub answer: RunAnswer,
    /// For the `events` queue.
    pub projections: Vec<Projection>,
}

/// What the alarm found to do.
#[derive(Default)]
pub struct Woken {
    pub messages: Messages,
    pub projections: Vec<Projection>,
}

impl Home {
    /// Carries out one call. On a fault nothing was stored that is not also in the log.
    pub fn handle<S: LogStore>(
        &mut self,
        store: &S,
        call: RunCall,
        now: Timestamp,
        random: u64,
    ) -> Result<Outcome, Fault> {
        self.counts.calls = self.counts.calls.saturating_add(1);
        let now = now.plus_ms(store.clock_offset_ms());
        let reads = call.op.reads();
        let shows = call.op.shows();
        #[cfg(feature = "test-seams")]
        let moved_ms = call.op.moved_ms();
        #[cfg(not(feature = "test-seams"))]
        let moved_ms = 0;
        let result = match self.carry_out(store, call, now, random) {
            Ok(result) => Ok(result),
            Err(Failure::Refused(refusal)) => Err(refusal),
            Err(Failure::Fault(fault)) => {
                self.forget();
                return Err(fault);
            }
        };
        if reads || result.is_err() {
            let untold = if shows { self.untold() } else { Vec::new() };
            return Ok(Outcome {
                answer: RunAnswer {
                    result,
                    messages: Messages::default(),
                    untold,
                },
                projections: Vec::new(),
            });
        }
        let messages = self.take_due(now.plus_ms(moved_ms));
        self.set_alarm(store)?;
        if let (Ok(RunResult::Checked { .. }), Some(state)) = (&result, &self.state) {
            // The sweeper tells the index itself.
            self.projected(state.seq);
        }
        Ok(Outcome {
            answer: RunAnswer {
                result,
                messages,
                untold: if shows { self.untold() } else { Vec::new() },
            },
            projections: self.take_projections(),
        })
    }

    /// The alarm fired.
    pub fn wake<S: LogStore>(
        &mut self,
        store: &S,
        now: Timestamp,
        random: u64,
    ) -> Result<Woken, Fault> {
        self.counts.alarms_fired = self.counts.alarms_fired.saturating_add(1);
        self.alarm = None;
        let now = now.plus_ms(store.clock_offset_ms());
        let state = match self.take_state(store) {
            Ok(Some(state)) => state,
            // Nothing is executed of a run that was never born, or whose log cannot be read.
            Ok(None) | Err(Failure::Refused(_)) => return Ok(Woken::default()),
            Err(Failure::Fault(fault)) => return Err(fault),
        };
        match self.turn(store, state, Input::Tick, now, random) {
            Ok(_) => {}
            Err(Failure::Refused(_)) => self.forget(),
            Err(Failure::Fault(fault)) => {
                self.forget();
                return Err(fault);
            }
        }
        let messages = self.take_due(now);
        self.set_alarm(store)?;
        let projections = match &self.state {
            Some(state) if state.shown_seq > self.projected_seq => {
                projections(state, self.projected_seq, state.updated_at)
            }
            _ => Vec::new(),
        };
        Ok(Woken {
            messages,
            projections,
        })
    }

    /// The run as it is in memory, if it is.
    pub fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    /// The index was told of the log up to `seq`.
    pub fn projected(&mut self, seq: u64) {
        self.projected_seq = self.projected_seq.max(seq);
    }

    fn carry_out<S: LogStore>(
        &mut self,
        store: &S,
        call: RunCall,
        now: Timestamp,
        random: u64,
    ) -> Result<RunResult, Failure> {
        let RunCall { tenant_id, op } = call;
        if let RunOp::Start {
            run_id,
            trace_id,
            created,
        } = op
        {
            let identity = Identity {
                run_id,
                tenant_id,
                trace_id,
            };
            return self.start(store, identity, *created, now, random);
        }
        let state = match self.take_state(store) {
            Err(Failure::Refused(refusal @ Refusal::Frozen { .. })) => {
                return frozen(store, &tenant_id, &op, refusal);
            }
            state => state?,
        };
        if let (None, RunOp::CallOff { parent_run_id }) = (&state, &op) {
            store.bar(&tenant_id, parent_run_id)?;
            return Ok(done_silently());
        }
        let state = state.filter(|state| state.tenant_id() == &tenant_id);
        let Some(state) = state else {
            self.forget();
            return Err(Failure::Refused(Refusal::NotFound));
        };
        match op {
            RunOp::Start { .. } => Err(Failure::Refused(Refusal::NotFound)),
            RunOp::View => self.show(state, |state| raw(&view::run(state))),
            RunOp::Diagnose => self.show(state, |state| raw(&diagnosis::diagnose(state))),
            RunOp::FirstAnswer => {
                self.state = Some(state);
                first_answer(store)
            }
            RunOp::Events {
                after,
                before,
                limit,
            } => self.events(store, state, after, before, limit),
            RunOp::DeadLetters => {
                let shown = state.dead_letters.iter().rev();
                let letters = shown.map(|letter| raw(&view::dead_letter(&state, letter)));
                let letters = letters.collect::<Result<Vec<_>, _>>();
                self.state = Some(state);
                Ok(RunResult::DeadLetters(letters?))
            }
            RunOp::DeadLetter { dead_letter_id } => self.show(state, |state| {
                let letter = state.dead_letter(&dead_letter_id);
                let letter = letter.ok_or(Failure::Refused(Refusal::NotFound))?;
                raw(&view::dead_letter(state, letter))
            }),
            RunOp::Approvals => {
                let shown = state.approvals.iter().rev();
                let approvals = shown.map(|approval| raw(&view::approval(&state, approval)));
                let approvals = approvals.collect::<Result<Vec<_>, _>>();
                self.state = Some(state);
                Ok(RunResult::Approvals(approvals?))
            }
            RunOp::Approval { approval_id } => {
                self.show(state, |state| show_approval(state, &approval_id))
            }
            RunOp::ChildOrder {
                step_index,
                child_run_id,
            } => {
                let order = decide::order(&state, step_index, &child_run_id);
                self.state = Some(state);
                Ok(RunResult::ChildOrder(order))
            }
            RunOp::Told => {
                let told = decide::told(&state);
                self.state = Some(state);
                Ok(RunResult::Told(told))
            }
            RunOp::ErrandDone(errand) => {
                self.state = Some(state);
                self.sent.done(errand);
                Ok(done_silently())
            }
            RunOp::Claim(claim) => self.claim(store, state, claim, now, random),
            RunOp::Extend(extend) => {
                match self.turn(store, state, Input::Extend(extend), now, random)? {
                    Reply::Extend(reply) => Ok(RunResult::Extend(reply)),
                    _ => Err(unexpected()),
                }
            }
            RunOp::Settle(settle) => self.settle(store, state, settle, now, random),
            RunOp::Control {
                control,
                comment,
                request,
            } => {
                let input = Input::Control {
                    control,
                    comment,
                    request,
                };
                let reply = self.turn(store, state, input, now, random)?;
                self.done(&reply, |state| raw(&view::run(state)).map(Some))
            }
            RunOp::CallOff { parent_run_id } => {
                let of_parent = state.parent().map(|parent| &parent.run_id) == Some(&parent_run_id);
                if !of_parent || state.status.is_end() {
                    self.state = Some(state);
                    return Ok(done_silently());
                }
                let input = Input::Control {
                    control: Control::Cancel,
                    comment: Some(CALLED_OFF.to_owned()),
                    request: None,
                };
                let reply = self.turn(store, state, input, now, random)?;
                self.done(&reply, |_| Ok(None))
            }
            RunOp::Raise {
                limits,
                comment,
                request,
            } => {
                let input = Input::Raise {
                    limits,
                    comment,
                    request,
                };
                let reply = self.turn(store, state, input, now, random)?;
                self.done(&reply, |state| raw(&view::run(state)).map(Some))
            }
            RunOp::Signal {
                name,
                payload,
                request,
            } => {
                let input = Input::Signal {
                    name,
                    payload,
                    request,
                };
                // Its entry is the turn's first.
                let seq = state.seq.saturating_add(1);
                match self.turn(store, state, input, now, random)? {
                    Reply::Done => Ok(RunResult::Done {
                        replayed: false,
                        seq,
                        shown: None,
                    }),
                    reply => self.done(&reply, |_| Ok(None)),
                }
            }
            RunOp::Answer {
                approval_id,
                answer,
                request,
            } => {
                let id = approval_id.clone();
                let input = Input::Answer {
                    approval_id,
                    answer,
                    request,
                };
                let reply = self.turn(store, state, input, now, random)?;
                self.done(&reply, |state| show_approval(state, &id).map(Some))
            }
            RunOp::Callback { callback, request } => {
                let input = Input::Callback { callback, request };
                let reply = self.turn(store, state, input, now, random)?;
                self.done(&reply, |_| Ok(None))
            }
            RunOp::Child(report) => {
                let reply = self.turn(store, state, Input::Child(report), now, random)?;
                self.done(&reply, |_| Ok(None))
            }
            RunOp::SettleDeadLetter {
                dead_letter_id,
                settlement,
                request,
            } => {
                let id = dead_letter_id.clone();
                let input = Input::SettleDeadLetter {
                    dead_letter_id,
                    settlement,
                    request,
                };
                let reply = self.turn(store, state, input, now, random)?;
                self.done(&reply, |state| {
                    let letter = state.dead_letter(&id);
                    letter
                        .map(|letter| raw(&view::dead_letter(state, letter)))
                        .transpose()
                })
            }
            RunOp::Envelope(envelope) => {
                let reply = self.turn(store, state, Input::Envelope(envelope), now, random)?;
                self.done(&reply, |_| Ok(None))
            }
            RunOp::Check => {
                let due = outbox::wake_at(&state, &self.sent);
                let rearmed = due.is_some_and(|at| at.plus_ms(ALARM_LATE_MS) <= now);
                self.turn(store, state, Input::Tick, now, random)?;
                self.set_alarm(store)?;
                let Some(state) = &self.state else {
                    return Err(unexpected());
                };
                // A child that failed may have been retried by hand, and have done its work since.
                let awaited = state.steps.iter().filter(|step| {
                    matches!(
                        step.phase,
                        Phase::AwaitingChild | Phase::DeadLettered { .. }
                    )
                });
                let children = awaited.filter_map(|step| step.child.as_ref());
                Ok(RunResult::Checked {
                    projections: projections(state, 0, now),
                    rearmed,
                    children: children.map(|child| child.run_id.clone()).collect(),
                })
            }
            #[cfg(feature = "test-seams")]
            op => self.seam(store, state, op, now, random),
        }
    }

    fn start<S: LogStore>(
        &mut self,
        store: &S,
        identity: Identity,
        created: RunCreated,
        now: Timestamp,
        random: u64,
    ) -> Result<RunResult, Failure> {
        if let Some(state) = self.take_state(store)? {
            // Asked again, after an answer that was lost: the run is there already.
            let same = state.tenant_id() == &identity.tenant_id;
            self.state = Some(state);
            return if same {
                first_answer(store)
            } else {
                Err(Failure::Refused(Refusal::NotFound))
            };
        }
        let parent = created.parent.as_ref().map(|parent| parent.run_id.clone());
        let tenant_id = identity.tenant_id.clone();
        let mut turn = decide::start(identity, created, now, random).map_err(Failure::Refused)?;
        if let Some(parent_run_id) = parent
            && store.is_barred(&tenant_id, &parent_run_id)?
        {
            // Called off before it existed: it is born cancelled.
            let input = Input::Control {
                control: Control::Cancel,
                comment: Some(CALLED_OFF.to_owned()),
                request: None,
            };
            decide(&mut turn, input).map_err(Failure::Refused)?;
        }
        self.commit(store, turn)?;
        let Some(state) = &self.state else {
            return Err(unexpected());
        };
        Ok(RunResult::Shown(raw(&view::run(state))?))
    }

    fn claim<S: LogStore>(
        &mut self,
        store: &S,
        state: State,
        claim: Claim,
        now: Timestamp,
        random: u64,
    ) -> Result<RunResult, Failure> {
        let index = claim.step_index;
        match self.turn(store, state, Input::Claim(claim), now, random)? {
            Reply::Claim(reply) => {
                if matches!(reply, ClaimReply::TurnedAway(_)) {
                    self.counts.duplicates_suppressed =
                        self.counts.duplicates_suppressed.saturating_add(1);
                }
                if matches!(reply, ClaimReply::TurnedAway(TurnedAway::Held)) {
                    let count = self.suppressed.entry(index).or_default();
                    *count = count.saturating_add(1);
                }
                Ok(RunResult::Claim(reply))
            }
            _ => Err(unexpected()),
        }
    }

    fn settle<S: LogStore>(
        &mut self,
        store: &S,
        state: State,
        mut settle: Settle,
        now: Timestamp,
        random: u64,
    ) -> Result<RunResult, Failure> {
        settle.duplicates_suppressed = self.suppressed.remove(&settle.step_index).unwrap_or(0);
        match self.turn(store, state, Input::Settle(settle), now, random)? {
            Reply::Settle(reply) => Ok(RunResult::Settle(reply)),
            _ => Err(unexpected()),
        }
    }

    fn events<S: LogStore>(
        &mut self,
        store: &S,
        state: State,
        after: u64,
        before: Option<u64>,
        limit: usize,
    ) -> Result<RunResult, Failure> {
        let limit = limit.min(LIST_LIMIT_MAX);
        let count = limit as u64;
        let above = after.saturating_add(1);
        let (first, last) = match before {
            None => (above, after.saturating_add(count).min(state.seq)),
            Some(before) => {
                let last = before.saturating_sub(1).min(state.seq);
                (above.max((last + 1).saturating_sub(count)), last)
            }
        };
        // The entry before the page is read with it: its hash is the first one's `prev_hash`.
        let rows = match before {
            _ if first > last => Vec::new(),
            None => store.page(after.max(1), limit + 1)?,
            Some(_) => store.page_back(last, limit + 1)?,
        };
        let entries = view::entries(&state.identity, &rows, first..=last).map_err(refuse)?;
        let mut entries = entries.iter().map(raw).collect::<Result<Vec<_>, _>>()?;
        if before.is_some() {
            entries.reverse();
        }
        fit_page(&mut entries);
        let result = RunResult::Events {
            entries,
            last_seq: state.seq,
            status: state.status.as_str().to_owned(),
            ended: state.has_ended(),
        };
        self.state = Some(state);
        Ok(result)
    }

    fn show(
        &mut self,
        state: State,
        show: impl FnOnce(&State) -> Result<Box<RawValue>, Failure>,
    ) -> Result<RunResult, Failure> {
        let shown = show(&state);
        self.state = Some(state);
        Ok(RunResult::Shown(shown?))
    }

    fn done(
        &self,
        reply: &Reply,
        show: impl FnOnce(&State) -> Result<Option<Box<RawValue>>, Failure>,
    ) -> Result<RunResult, Failure> {
        let Some(state) = &self.state else {
            return Err(unexpected());
        };
        let (replayed, seq) = match reply {
            Reply::Replayed { seq } => (true, *seq),
            _ => (false, state.seq),
        };
        Ok(RunResult::Done {
            replayed,
            seq,
            shown: show(state)?,
        })
    }

    /// One turn: decide, commit, keep the new state. A refused turn is dropped with its state.
    fn turn<S: LogStore>(
        &mut self,
        store: &S,
        state: State,
        input: Input,
        now: Timestamp,
        random: u64,
    ) -> Result<Reply, Failure> {
        let mut turn = Turn::new(state, now, random);
        match decide(&mut turn, input) {
            Ok(reply) => {
                self.commit(store, turn)?;
                Ok(reply)
            }
            Err(refusal) => {
                // Nothing was recorded by most refusals, and then the state is as good as before.
                self.state = turn.entries.is_empty().then_some(turn.state);
                Err(Failure::Refused(refusal))
            }
        }
    }

    fn commit<S: LogStore>(&mut self, store: &S, mut turn: Turn) -> Result<(), Failure> {
        if !turn.entries.is_empty() {
            let first_seq = turn.state.seq.saturating_sub(turn.entries.len() as u64) + 1;
            let rows =
                log::rows(&turn.state.identity, first_seq, &mut turn.entries).map_err(|e| {
                    refuse(Corrupt {
                        seq: first_seq,
                        message: e.to_string(),
                    })
                })?;
            let bytes: usize = turn.entries.iter().map(|entry| entry.bytes).sum();
            turn.state.log_bytes = turn.state.log_bytes.saturating_add(bytes);
            store.append(&rows)?;
            self.counts.commits = self.counts.commits.saturating_add(1);
            self.counts.rows_written = self.counts.rows_written.saturating_add(rows.len() as u64);
        }
        self.state = Some(turn.state);
        Ok(())
    }

    /// Moves the alarm when it must be earlier. One that is too early costs less than moving it, but
    /// for a run that comes to rest: that one is let sleep until there is something to do.
    fn set_alarm<S: LogStore>(&mut self, store: &S) -> Result<(), Fault> {
        let Some(state) = &self.state else {
            return Ok(());
        };
        let rests = state.status.is_idle();
        match (outbox::wake_at(state, &self.sent), self.alarm) {
            (Some(wake_at), Some(alarm)) if alarm <= wake_at => {
                let idle_ms = wake_at.ms_since(alarm);
                if !rests || idle_ms < ALARM_IDLE_MS {
                    return Ok(());
                }
                self.move_alarm(store, wake_at)
            }
            (Some(wake_at), _) => self.move_alarm(store, wake_at),
            (None, Some(_)) if rests || state.parent().is_some() => {
                store.clear_alarm()?;
                self.alarm = None;
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    fn move_alarm<S: LogStore>(&mut self, store: &S, wake_at: Timestamp) -> Result<(), Fault> {
        store.set_alarm(wake_at.plus_ms(-store.clock_offset_ms()))?;
        self.alarm = Some(wake_at);
        self.counts.alarms_set = self.counts.alarms_set.saturating_add(1);
        Ok(())
    }

    /// The messages that are due, counted as sent.
    fn take_due(&mut self, now: Timestamp) -> Messages {
        let mut messages = Messages::default();
        let Some(state) = &self.state else {
            return messages;
        };
        for message in outbox::take_due(state, &mut self.sent, now) {
            let Ok(text) = serde_json::to_string(&message) else {
                continue;
            };
            if message.is_of_round() {
                messages.plan.push(text);
            } else {
                messages.work.push(text);
            }
        }
        #[cfg(feature = "test-seams")]
        messages.work.append(&mut self.copies);
        let counts = &mut self.counts;
        counts.plan_messages += messages.plan.len() as u64;
        counts.work_messages += messages.work.len() as u64;
        messages
    }

    /// What a client who is shown the run may look for in the index, and the index may not have yet.
    fn untold(&self) -> Vec<Projection> {
        let Some(state) = &self.state else {
            return Vec::new();
        };
        let asks = state.open_dead_letters().next().is_some()
            || state.approvals.iter().any(|a| a.verdict.is_none());
        if asks && state.shown_seq > self.projected_seq {
            projections(state, self.projected_seq, state.updated_at)
        } else {
            Vec::new()
        }
    }

    /// What the index must be told at once: that the run came to rest, of a dead letter, of an approval.
    fn take_projections(&mut self) -> Vec<Projection> {
        let Some(state) = &self.state else {
            return Vec::new();
        };
        if state.shown_seq <= self.projected_seq {
            return Vec::new();
        }
        // Of a run that goes on the index hears when it comes to rest; of what somebody is asked, or has
        // answered, at once.
        let asked = state.approvals.iter().map(|approval| approval.changed_seq);
        let letters = state.dead_letters.iter().map(|letter| letter.changed_seq);
        let news = asked.chain(letters).any(|seq| seq > self.projected_seq);
        let rests = state.status.is_idle() || state.status.is_end();
        if !news && !rests {
            return Vec::new();
        }
        self.counts.projections = self.counts.projections.saturating_add(1);
        projections(state, self.projected_seq, state.updated_at)
    }

    /// Takes the state out of memory, or folds it from the log. Whoever takes it puts it back, or
    /// leaves it to be folded anew.
    fn take_state<S: LogStore>(&mut self, store: &S) -> Result<Option<State>, Failure> {
        if let Some(state) = self.state.take() {
            return Ok(Some(state));
        }
        fold::fold(&store.load()?).map_err(refuse)
    }

    fn forget(&mut self) {
        self.state = None;
    }
}

/// What cannot be read has one thing to say, and only to its tenant: where.
fn frozen<S: LogStore>(
    store: &S,
    tenant_id: &TenantId,
    op: &RunOp,
    refusal: Refusal,
) -> Result<RunResult, Failure> {
    let first = store.page(1, 1)?;
    let identity = first.first().and_then(log::identity);
    let identity = identity.filter(|identity| &identity.tenant_id == tenant_id);
    let identity = identity.ok_or(Failure::Refused(Refusal::NotFound))?;
    match (op, refusal) {
        (RunOp::Diagnose, Refusal::Frozen { seq, .. }) => {
            let shown = raw(&diagnosis::frozen(identity.run_id, seq))?;
            Ok(RunResult::Shown(shown))
        }
        (_, refusal) => Err(Failure::Refused(refusal)),
    }
}

fn done_silently() -> RunResult {
    RunResult::Done {
        replayed: false,
        seq: 0,
        shown: None,
    }
}

fn show_approval(state: &State, id: &ApprovalId) -> Result<Box<RawValue>, Failure> {
    let approval = state.approval(id);
    let approval = approval.ok_or(Failure::Refused(Refusal::NotFound))?;
    raw(&view::approval(state, approval))
}

/// Why a call was not carried out.
enum Failure {
    Refused(Refusal),
    Fault(Fault),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Fault(fault) => fault,
            Failure::Refused(refusal) => Fault::new("wake", "run", format!("{refusal:?}")),
        }
    }
}

fn refuse(corrupt: Corrupt) -> Failure {
    Failure::Refused(corrupt.into())
}

fn unexpected() -> Failure {
    Failure::Fault(Fault::new(
        "answer",
        "run",
        "the decision gave a reply of another kind",
    ))
}

fn raw(view: &impl Serialize) -> Result<Box<RawValue>, Failure> {
    to_raw_value(view).map_err(|e| Failure::Fault(Fault::new("show", "run", e.to_string())))
}

/// Cuts a page off where it would become larger than [`PAGE_BYTES_MAX`], after one item at the
/// earliest.
fn fit_page(items: &mut Vec<Box<RawValue>>) {
    let mut bytes = 0_usize;
    let fitting = items.iter().take_while(|item| {
        bytes = bytes.saturating_add(item.get().len());
        bytes <= PAGE_BYTES_MAX
    });
    let fitting = fitting.count().max(1);
    items.truncate(fitting);
}

/// The run as it was when it was born: what its first row adds up to.
fn first_answer<S: LogStore>(store: &S) -> Result<RunResult, Failure> {
    let rows = store.page(1, LIST_LIMIT_MAX)?;
    let born = fold::fold_first_turn(&rows).map_err(refuse)?;
    let born = born.ok_or(Failure::Refused(Refusal::NotFound))?;
    Ok(RunResult::Shown(raw(&view::run(&born))?))
}
