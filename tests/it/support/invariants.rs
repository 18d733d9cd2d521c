//! What must hold after every turn, and what must hold at the end.

use std::collections::BTreeMap;

use dormouse::json::{self, Value};
use dormouse::run::event::DeadLetterReason;
use dormouse::run::{Phase, State, Status, fold, log, view};
use dormouse::words::{RunId, sha256_hex};

use super::world::{Inner, Object};

/// `thorough`: the log is folded anew, which is dear, so not after every turn.
pub fn after_turn(object: &Object, armed: bool, thorough: bool) {
    if thorough {
        let rows = object.disk.rows.borrow();
        let folded = fold::fold(&rows).expect("a log that can be read");
        if let Some(live) = object.home.state() {
            live_state_equals_folded_log(live, folded.as_ref());
        }
    }
    if let Some(state) = object.home.state() {
        every_run_owns_a_wake_source(state, armed);
    }
}

pub fn live_state_equals_folded_log(live: &State, folded: Option<&State>) {
    let folded = folded.expect("a live state has a log");
    assert_eq!(live, folded, "the live state differs from the folded log");
}

pub fn every_run_owns_a_wake_source(state: &State, armed: bool) {
    if state.has_ended() {
        return;
    }
    let held_by_a_person = state.open_dead_letters().next().is_some();
    let active = state
        .steps
        .iter()
        .any(|step| step.is_active() || matches!(step.phase, Phase::Sleeping { .. }));
    assert!(
        !active || armed,
        "{}: something is under way and no alarm is set",
        state.run_id()
    );
    assert!(
        active || held_by_a_person,
        "{}: nothing will ever move it",
        state.run_id()
    );
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
            other => panic!("{run_id} is {other:?} when nothing is left to happen"),
        }
        let acted = |key: &str| inner.sink.acted(key);
        for step in &state.steps {
            let key = step
                .request
                .as_ref()
                .map(|request| request.idempotency_key.as_str());
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

/// A person is asked only about what only a person can settle.
pub fn dead_letters_are_true(inner: &Inner) {
    for run_id in inner.objects.keys() {
        let Some(state) = inner.state_on_disk(run_id) else {
            continue;
        };
        for letter in &state.dead_letters {
            let step = &state.steps[letter.step_index as usize];
            let tool = step.name.as_deref().unwrap_or_default();
            let fits = match letter.reason {
                DeadLetterReason::RejectedByTool => tool == "reject",
                DeadLetterReason::InvalidResult => tool == "garbage",
                DeadLetterReason::OutcomeUnknown => tool == "once",
                DeadLetterReason::InvalidArguments => tool == "typed",
                DeadLetterReason::UnknownTool => tool == "missing",
                DeadLetterReason::RetriesExhausted | DeadLetterReason::Undeliverable => true,
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
