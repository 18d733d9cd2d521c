//! What must hold after every turn, and what must hold at the end.

use std::collections::BTreeMap;

use dormouse::json::{self, Value};
use dormouse::outbox::{self, Sent};
use dormouse::run::event::DeadLetterReason;
use dormouse::run::{Phase, State, Status, diagnosis, fold, log, view};
use dormouse::words::{RunId, Timestamp, sha256_hex};

use super::world::{Inner, Object};

/// `thorough`: the log is folded anew, which is dear, so not after every turn.
pub fn after_turn(object: &Object, armed: Option<Timestamp>, thorough: bool) {
    if thorough {
        let rows = object.disk.rows.borrow();
        let folded = fold::fold(&rows).expect("a log that can be read");
        if let Some(live) = object.home.state() {
            live_state_equals_folded_log(live, folded.as_ref());
        }
    }
    if let Some(state) = object.home.state() {
        every_run_owns_a_wake_source(state, armed);
        limits_hold(state);
    }
}

pub fn live_state_equals_folded_log(live: &State, folded: Option<&State>) {
    let folded = folded.expect("a live state has a log");
    assert_eq!(live, folded, "the live state differs from the folded log");
}

/// What the run has to do by itself has an alarm that is not too late; and a run that nothing of its
/// own will move has somebody outside who can.
pub fn every_run_owns_a_wake_source(state: &State, armed: Option<Timestamp>) {
    let run_id = state.run_id();
    if outbox::wake_at(state, &Sent::default()).is_some() && !errands_alone(state) {
        assert!(
            armed.is_some(),
            "{run_id}: it has something to do and no alarm is set"
        );
    }
    if state.has_ended() {
        return;
    }
    let paused = state.paused_at.is_some();
    let timers = state
        .steps
        .iter()
        .filter(|step| !paused || step.lease().is_some());
    let due = timers
        .filter_map(|step| step.due())
        .chain(state.deadline())
        .min();
    if let Some(due) = due {
        assert!(
            armed.is_some_and(|at| at <= due),
            "{run_id}: due at {due} and the alarm is at {armed:?}"
        );
    }
    let outside = state.steps.iter().any(|step| {
        matches!(
            step.phase,
            Phase::AwaitingSignal { .. }
                | Phase::AwaitingApproval { .. }
                | Phase::AwaitingCallback { .. }
                | Phase::AwaitingChild
                | Phase::DeadLettered { .. }
        )
    });
    assert!(
        armed.is_some() || outside || paused || state.reached.is_some(),
        "{run_id}: nothing will ever move it"
    );
}

/// Only errands are left, which may have been done without an entry that says so.
fn errands_alone(state: &State) -> bool {
    state.has_ended() || outbox::wanting(state).is_empty() && !state.called_off.is_empty()
}

/// A report counts only while its own claim holds the step.
pub fn only_the_holder_reports(run_id: &RunId, token: u64, held: Option<u64>, recorded: bool) {
    assert_eq!(
        recorded,
        held == Some(token),
        "{run_id}: a report under token {token} while {held:?} held the step"
    );
}

/// The log's numbers have no gap, each entry's hash follows from the one before, and nothing
/// follows the end.
pub fn log_is_gapless_and_chained(object: &Object) {
    let rows = object.disk.rows.borrow();
    let Some(state) = fold::fold(&rows).expect("a log that can be read") else {
        return;
    };
    let entries = view::entries(&state.identity, &rows, 1..=u64::MAX).expect("entries");
    let mut prev_hash = log::ZERO_HASH.to_owned();
    for (number, entry) in entries.iter().enumerate() {
        assert_eq!(
            entry["seq"],
            Value::from(number as u64 + 1),
            "a gap in the log"
        );
        assert_eq!(
            entry["prev_hash"],
            Value::from(prev_hash.clone()),
            "a broken chain"
        );
        let mut unhashed = entry.clone();
        let hash = unhashed
            .as_object_mut()
            .unwrap()
            .shift_remove("hash")
            .unwrap();
        assert_eq!(
            hash,
            Value::from(sha256_hex(json::canonical(&unhashed).as_bytes()))
        );
        prev_hash = hash.as_str().unwrap().to_owned();
        dormouse::schema::validate("log-entry", entry).expect("an entry as its schema has it");
        let event_type = entry["event_type"].as_str().unwrap();
        // The schemas of planners' logs may not have come yet.
        let known =
            dormouse::schema::embedded::event_types().any(|known| known == "plan.requested");
        if !known && state.agent.mind().is_some() {
            continue;
        }
        dormouse::schema::validate_at(event_type, &entry["payload"], "/payload")
            .unwrap_or_else(|e| panic!("{event_type}: {}", json::sentence(&e)));
    }
    assert_eq!(state.seq, entries.len() as u64);
}

/// One step, one key; and a tool that must not be called twice was not, once it may have acted.
pub fn no_effect_twice(inner: &Inner) {
    let mut keys: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    let mut firsts: BTreeMap<&str, u32> = BTreeMap::new();
    for seen in &inner.sink.seen {
        let step = (seen.run_id.as_str(), seen.step_index.as_str());
        let key = keys.entry(step).or_insert(&seen.key);
        assert_eq!(*key, seen.key, "one step came with two keys: {step:?}");
        *firsts.entry(&seen.key).or_default() += u32::from(seen.first);
        if seen.tool == "once" {
            let acted = inner.sink.acted(&seen.key);
            assert!(
                acted <= 1,
                "a tool of at most one effect acted {acted} times: {step:?}"
            );
        }
    }
    for (key, firsts) in firsts {
        assert!(firsts <= 1, "{key} had its effect {firsts} times");
    }
}

/// Every run that was begun is there, and has ended or waits for a person with a true reason.
pub fn no_run_is_lost(inner: &Inner) {
    for run_id in inner.objects.keys() {
        let Some(state) = inner.state_on_disk(run_id) else {
            continue;
        };
        match state.status {
            Status::Completed => {
                assert!(
                    state.steps.iter().all(|step| step.is_done()),
                    "{run_id} ended too early"
                );
            }
            Status::Blocked => {
                assert!(
                    state.open_dead_letters().next().is_some(),
                    "{run_id} is blocked by nothing"
                );
            }
            Status::Cancelled => {
                assert!(state.has_ended(), "{run_id} was called off and never ended")
            }
            Status::Failed => assert!(state.error.is_some(), "{run_id} failed for no reason"),
            // Its child is held by a person, and so is it.
            Status::Waiting if waits_for_a_blocked_child(inner, &state) => {}
            other => panic!("{run_id} is {other:?} when nothing is left to happen"),
        }
        the_diagnosis_is_true(&state);
        let acted = |key: &str| inner.sink.acted(key);
        for step in &state.steps {
            let key = step
                .request
                .as_ref()
                .map(|request| request.idempotency_key.as_str());
            // A person may say what became of it.
            if step.history.iter().any(|line| line.outcome == "resolved") {
                continue;
            }
            if let (Phase::Completed, "tool", Some(key)) = (&step.phase, step.kind, key) {
                assert!(
                    acted(key) >= 1,
                    "{run_id} {} is completed and never acted",
                    step.id
                );
            }
        }
    }
}

fn waits_for_a_blocked_child(inner: &Inner, state: &State) -> bool {
    let mut open = state
        .steps
        .iter()
        .filter(|step| step.phase == Phase::AwaitingChild);
    open.all(|step| {
        let child = step.child.as_ref().map(|child| &child.run_id);
        let child = child.and_then(|run_id| inner.state_on_disk(run_id));
        child.is_some_and(|child| {
            child.status == Status::Blocked || waits_for_a_blocked_child(inner, &child)
        })
    }) && state
        .steps
        .iter()
        .any(|step| step.phase == Phase::AwaitingChild)
}

/// A tool that wants leave was called only with arguments that a person had approved, and the log
/// says so before the call.
pub fn nothing_was_called_without_leave(inner: &Inner) {
    for run_id in inner.objects.keys() {
        let Some(state) = inner.state_on_disk(run_id) else {
            continue;
        };
        for (index, step) in state.steps.iter().enumerate() {
            let Some(request) = &step.request else {
                continue;
            };
            let calls = inner
                .sink
                .seen
                .iter()
                .filter(|seen| seen.tool == "guarded" && seen.key == request.idempotency_key);
            if calls.count() == 0 {
                continue;
            }
            let allowed = state.approvals.iter().any(|approval| {
                let digest = approval.call.as_ref().map(|call| &call.arguments_digest);
                approval.step_index as usize == index
                    && approval.status() == "approved"
                    && digest == Some(&request.arguments_digest())
            });
            assert!(allowed, "{run_id} {}: called without leave", step.id);
        }
    }
}

/// Each child that exists has the parent that asked for it; each end is told once; and what was
/// called off has ended.
pub fn parents_know_their_children(inner: &Inner) {
    for (run_id, object) in &inner.objects {
        let Some(state) = inner.state_on_disk(run_id) else {
            continue;
        };
        if let Some(parent) = state.parent() {
            let asked = inner
                .state_on_disk(&parent.run_id)
                .expect("a parent exists");
            let step = &asked.steps[parent.step_index as usize];
            let known = step.child.as_ref().map(|child| &child.run_id) == Some(run_id)
                || asked.called_off.iter().any(|(child, _)| child == run_id)
                || !step.history.is_empty();
            assert!(known, "{run_id}: its parent does not know it");
        }
        for (child, _) in &state.called_off {
            let ended = inner
                .state_on_disk(child)
                .is_none_or(|child| child.has_ended());
            assert!(ended, "{run_id}: {child} was called off and goes on");
        }
        let rows = object.disk.rows.borrow();
        let entries = view::entries(&state.identity, &rows, 1..=u64::MAX).expect("entries");
        let mut started: BTreeMap<String, u32> = BTreeMap::new();
        let mut ended: BTreeMap<String, u32> = BTreeMap::new();
        for entry in &entries {
            let child = entry["payload"]["run_id"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            match entry["event_type"].as_str().unwrap_or_default() {
                "child.started" => *started.entry(child).or_default() += 1,
                "child.ended" => *ended.entry(child).or_default() += 1,
                _ => {}
            }
        }
        assert!(
            started.values().all(|times| *times == 1),
            "{run_id}: {started:?}"
        );
        // Once failed and once mended is the most.
        assert!(
            ended.values().all(|times| *times <= 2),
            "{run_id}: {ended:?}"
        );
    }
}

/// Each signal that was received was taken at most once, and each key stored one.
pub fn signals_are_taken_once(inner: &Inner) {
    for (run_id, object) in &inner.objects {
        let Some(state) = inner.state_on_disk(run_id) else {
            continue;
        };
        let rows = object.disk.rows.borrow();
        let entries = view::entries(&state.identity, &rows, 1..=u64::MAX).expect("entries");
        let mut taken = BTreeMap::new();
        let mut keys = BTreeMap::new();
        for entry in &entries {
            match entry["event_type"].as_str().unwrap_or_default() {
                "signal.received" => {
                    let key = entry["payload"]["request"].to_string();
                    *keys.entry(key).or_insert(0) += 1;
                }
                "signal.consumed" => {
                    let seq = entry["payload"]["received_seq"].to_string();
                    *taken.entry(seq).or_insert(0) += 1;
                }
                _ => {}
            }
        }
        assert!(keys.values().all(|times| *times == 1), "{run_id}: {keys:?}");
        assert!(
            taken.values().all(|times| *times == 1),
            "{run_id}: {taken:?}"
        );
        let received: usize = keys.values().sum::<u32>() as usize;
        assert_eq!(received, taken.len() + state.mailbox.len(), "{run_id}");
    }
}

/// A person is asked only about what only a person can settle.
pub fn dead_letters_are_true(inner: &Inner) {
    for run_id in inner.objects.keys() {
        let Some(state) = inner.state_on_disk(run_id) else {
            continue;
        };
        for letter in &state.dead_letters {
            let step = &state.steps[letter.step_index as usize];
            let tool = step.name.as_deref().unwrap_or_default();
            let of_model = step.intent.is_some();
            let mended_too_late = step.flaw.is_some()
                && letter
                    .message
                    .starts_with("the model's output stayed invalid");
            let fits = match letter.reason {
                DeadLetterReason::InvalidArguments | DeadLetterReason::UnknownTool if of_model => {
                    mended_too_late
                }
                DeadLetterReason::OutcomeUnknown if of_model => {
                    ["once", "once-verified"].contains(&tool)
                }
                DeadLetterReason::InvalidResult if step.kind == "plan" => true,
                // What fails is news for the model, and no person's matter, but for a step that a
                // person has taken over.
                DeadLetterReason::Undeliverable if of_model => true,
                _ if of_model => step.flaw.is_some(),
                DeadLetterReason::RejectedByTool => ["reject", "later"].contains(&tool),
                DeadLetterReason::InvalidResult => tool == "garbage",
                DeadLetterReason::OutcomeUnknown => tool == "once",
                DeadLetterReason::InvalidArguments => tool == "typed",
                DeadLetterReason::UnknownTool => tool == "missing",
                DeadLetterReason::RetriesExhausted | DeadLetterReason::Undeliverable => true,
                DeadLetterReason::ChildFailed => step.kind == "run",
                DeadLetterReason::ModelFailed => step.kind == "plan",
                DeadLetterReason::InvalidEnvelope | DeadLetterReason::FanOutLimit => false,
            };
            assert!(
                fits,
                "{run_id} {tool}: {:?} {}",
                letter.reason, letter.message
            );
        }
    }
    assert!(
        inner.strays.is_empty(),
        "a good message was taken for a bad one: {:?}",
        inner.strays
    );
}

/// The index that clients list tells the truth once the sweeper has passed.
pub fn index_tells_the_truth(inner: &Inner) {
    for run_id in inner.objects.keys() {
        let Some(state) = inner.state_on_disk(run_id) else {
            continue;
        };
        let (_, status) = &inner.index[run_id];
        assert_eq!(status, state.status.as_str(), "{run_id} is listed wrongly");
    }
    for (run_id, (_, status)) in &inner.index {
        let born = inner.state_on_disk(run_id).is_some();
        assert!(born, "{run_id} is listed as {status} and was never born");
    }
}

/// What a run may use up it has not gone beyond.
pub fn limits_hold(state: &State) {
    if state.agent.mind().is_none() {
        return;
    }
    let (run_id, limits) = (state.run_id(), &state.limits);
    // What was called off before its turn was not begun.
    let begun = state.steps.iter().filter(|step| {
        !matches!(
            step.phase,
            Phase::Pending | Phase::Cancelled | Phase::Skipped
        )
    });
    let begun = begun.count();
    assert!(
        begun <= limits.max_steps as usize,
        "{run_id}: {begun} steps of {}",
        limits.max_steps
    );
    let asked = state.steps.iter().filter(|step| step.kind == "plan");
    let asked = asked.count();
    assert!(
        limits.max_rounds.is_none_or(|most| asked <= most as usize),
        "{run_id}: {asked} rounds of {:?}",
        limits.max_rounds
    );
    // A step that a person has let go, or sent on its way again, goes at once.
    let in_flight = state.steps.iter().filter(|step| {
        let calls = matches!(step.kind, "tool" | "run");
        let again = step.attempts_before > 0
            || step.flaw.is_some()
            || step.approved.is_some()
            || step.history.iter().any(|line| line.outcome != "completed");
        calls && !again && (step.is_active() || step.phase == Phase::AwaitingChild)
    });
    let in_flight = in_flight.count();
    assert!(
        in_flight <= limits.max_parallel as usize,
        "{run_id}: {in_flight} calls at once of {}",
        limits.max_parallel
    );
    let tokens = &state.tokens;
    let before = (tokens.input + tokens.output).saturating_sub(tokens.last);
    // A person may have the model asked again, whatever that costs.
    let again = state
        .steps
        .iter()
        .any(|step| step.kind == "plan" && step.attempts_before > 0);
    assert!(
        again || limits.max_tokens.is_none_or(|most| before <= most),
        "{run_id}: {tokens:?} of {:?}",
        limits.max_tokens
    );
}

/// Whoever asks why a run stands still is told what would move it.
fn the_diagnosis_is_true(state: &State) {
    let told = diagnosis::diagnose(state);
    let run_id = state.run_id();
    if state.has_ended() {
        return;
    }
    if state.status != Status::Failed {
        assert!(
            !told.blockers.is_empty(),
            "{run_id} stands still for no reason"
        );
    }
    for blocker in &told.blockers {
        let step = blocker.step_index.and_then(|index| state.step(index));
        let phase = step.map(|step| &step.phase);
        let is_true = match blocker.kind {
            "limit" => state.reached.is_some(),
            "paused" => state.paused_at.is_some(),
            "dead_letter" => matches!(phase, Some(Phase::DeadLettered { .. })),
            "child" => matches!(phase, Some(Phase::AwaitingChild)),
            _ => false,
        };
        assert!(is_true, "{run_id}: {blocker:?}");
    }
}

/// Each answer that a log has was given to that round, and once; and a round that has one is not
/// asked for again.
pub fn answers_are_recorded_once(inner: &Inner) {
    for (run_id, object) in &inner.objects {
        let Some(state) = inner.state_on_disk(run_id) else {
            continue;
        };
        if state.agent.mind().is_none() {
            continue;
        }
        let rows = object.disk.rows.borrow();
        let entries = view::entries(&state.identity, &rows, 1..=u64::MAX).expect("entries");
        let mut recorded: BTreeMap<String, u64> = BTreeMap::new();
        let mut completed: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut tries, mut tokens) = (0, 0);
        for entry in &entries {
            let Some(step_index) = entry["step_index"].as_u64() else {
                continue;
            };
            let event_type = entry["event_type"].as_str().unwrap_or_default();
            if event_type.starts_with("plan.") {
                assert!(
                    !completed.contains_key(&step_index),
                    "{run_id}: {event_type} after the round's answer"
                );
            }
            if event_type == "plan.completed" {
                completed.insert(step_index, entry["seq"].as_u64().unwrap());
            }
            for tried in entry["payload"]
                .get("tries")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                let count = |member: &str| tried[member].as_u64().unwrap_or(0);
                tries += 1;
                tokens += count("input_tokens") + count("output_tokens");
            }
            let answer = entry["payload"]
                .get("answer")
                .and_then(|answer| answer["id"].as_str());
            if let (true, Some(answer)) = (event_type.starts_with("plan."), answer) {
                let before = recorded.insert(answer.to_owned(), step_index);
                assert_eq!(before, None, "{run_id}: {answer} was recorded twice");
                let given = inner
                    .brain
                    .answers
                    .get(answer)
                    .expect("an answer that was given");
                assert_eq!(*given, (run_id.clone(), step_index as u32), "{answer}");
            }
        }
        assert_eq!(state.rounds.len(), completed.len(), "{run_id}");
        assert_eq!(state.model_calls, tries, "{run_id}");
        assert_eq!(state.tokens.input + state.tokens.output, tokens, "{run_id}");
        malformed_calls_come_to_nothing(&state);
        for step_index in completed.keys() {
            let round = (run_id.clone(), *step_index as u32);
            let asked = inner.brain.asked.get(&round);
            assert!(
                asked.is_some_and(|times| *times > 0),
                "{round:?} was never asked"
            );
        }
    }
}

/// What is malformed has no step, unless a person must settle it, and the model is told why.
fn malformed_calls_come_to_nothing(state: &State) {
    let run_id = state.run_id();
    for called in state.rounds.iter().flat_map(|round| &round.calls) {
        let step = called.step_index.and_then(|index| state.step(index));
        match (&called.error, step) {
            (Some(error), Some(step)) => {
                assert!(
                    error
                        .message
                        .starts_with("the model's output stayed invalid"),
                    "{run_id}"
                );
                assert!(step.flaw.is_some(), "{run_id} {}", step.id);
            }
            (None, Some(step)) => assert!(step.flaw.is_none(), "{run_id} {}", step.id),
            (Some(_), None) => {}
            (None, None) => assert_eq!(called.name, "finish", "{run_id}: {called:?}"),
        }
    }
}

/// A tool has only seen arguments that the model gave as they are, or a person.
pub fn tools_are_called_as_the_model_meant(inner: &Inner) {
    // A run whose model was never asked called nothing.
    for seen in &inner.sink.seen {
        let of = |(run_id, _): &&(RunId, u32)| run_id.as_str() == seen.run_id;
        let Some((run_id, _)) = inner.brain.asked.keys().find(of) else {
            continue;
        };
        let body = seen.body.as_deref().expect("arguments");
        let arguments = json::read(body.as_bytes()).expect("JSON");
        let meant = inner.brain.meant.get(run_id);
        let meant = meant.is_some_and(|meant| {
            meant
                .iter()
                .any(|(tool, given)| *tool == seen.tool && json::same(given, &arguments))
        });
        let supplied = inner
            .supplied
            .iter()
            .any(|(of, given)| of == run_id && json::same(given, &arguments));
        assert!(
            meant || supplied,
            "{run_id}: {} was called with {arguments}, which nobody meant",
            seen.tool
        );
    }
}
