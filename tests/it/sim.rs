//! Many runs in bad weather, by seed. A failure prints its seed; `SIM_SEED=<seed>` plays it alone.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::support::rng::Rng;
use crate::support::scenario::{START_MS, begin, play, random_story, random_thinker, straight};
use crate::support::world::{Sim, Weather};

const SEEDS: u64 = 5_000;
const RUNS: u64 = 3;
/// So many failures tell enough.
const FAILED_MAX: usize = 10;

fn play_seed(seed: u64) -> Sim {
    let mut rng = Rng::new(seed);
    let plans = (0..RUNS).map(|_| random_story(&mut rng)).collect();
    play(seed, plans, Weather::STORM, None)
}

#[test]
fn every_seed_keeps_every_promise() {
    if let Ok(seed) = std::env::var("SIM_SEED") {
        drop(play_seed(seed.parse().expect("SIM_SEED is a number")));
        return;
    }
    let seeds = std::env::var("SIM_SEEDS").map_or(SEEDS, |text| text.parse().expect("a number"));
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get() as u64);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let failed = &failed;
            scope.spawn(move || {
                for seed in (thread..seeds).step_by(threads as usize) {
                    let played = std::panic::catch_unwind(|| drop(play_seed(seed)));
                    if played.is_err() {
                        println!("seed {seed} failed: play it with SIM_SEED={seed}");
                        failed.lock().unwrap().push(seed);
                    }
                    if failed.lock().unwrap().len() >= FAILED_MAX {
                        return;
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "seeds that failed: {failed:?}");
    println!("{seeds} seeds of {RUNS} runs, first 0");
}

#[test]
fn a_seed_is_the_whole_story() {
    for seed in 0..20 {
        let (once, again) = (play_seed(seed), play_seed(seed));
        assert_eq!(once.0.borrow().trace, again.0.borrow().trace, "seed {seed}");
        for (run_id, object) in &once.0.borrow().objects {
            let other = again.0.borrow();
            assert_eq!(
                *object.disk.rows.borrow(),
                *other.objects[run_id].disk.rows.borrow()
            );
        }
    }
}

#[test]
fn a_straight_run_of_three_steps_costs_what_it_should() {
    let sim = play(9, vec![straight("steady")], Weather::CALM, None);
    let inner = sim.0.borrow();
    let object = inner.objects.values().next().unwrap();
    let counts = object.home.counts;
    // start, claim, and one for each step's report; the last holds the end.
    assert_eq!(counts.commits, 5, "{counts:?}");
    assert_eq!(counts.rows_written, 5, "{counts:?}");
    assert_eq!(counts.calls, 5, "{counts:?}");
    assert_eq!(counts.work_messages, 1, "{counts:?}");
    assert_eq!(counts.alarms_set, 1, "{counts:?}");
    assert_eq!(inner.sink.seen.len(), 3);
}

const OF_A_PLANNER: [&str; 9] = [
    "plan.requested",
    "plan.claimed",
    "plan.lease_extended",
    "plan.lease_expired",
    "plan.retry_scheduled",
    "plan.completed",
    "plan.failed",
    "limit.reached",
    "limit.raised",
];

/// Bad weather is worth something only where everything happens in it.
#[test]
fn every_kind_of_event_happens() {
    let known = dormouse::schema::embedded::event_types().chain(OF_A_PLANNER);
    let known = known.map(|event_type| format!("{{\"{event_type}\":"));
    everything_happens(known.collect(), play_seed);
}

/// So is a model that is no good.
#[test]
fn every_trouble_with_models_happens() {
    let of = |member: &'static str, values: &'static [&'static str]| {
        values
            .iter()
            .map(move |value| format!("\"{member}\":\"{value}\""))
    };
    let limits = &["max_steps", "max_rounds", "max_tokens", "max_repeats"];
    let reasons = &[
        "invalid_arguments",
        "unknown_tool",
        "not_alone",
        "model_failed",
        "invalid_result",
        "retries_exhausted",
    ];
    let outcomes = &[
        "rate_limited",
        "overloaded",
        "unreadable",
        "refused",
        "bad_request",
    ];
    let texts = [
        "\"estimated\":true",
        "\"invalid_json\":",
        "\"flaw\":",
        "\"id\":\"call_r",
        "the model's output stayed invalid",
        // What a person put in the place of a malformed call.
        "\"payload\":{\"tool\":\"typed\"",
    ];
    let marks = of("limit", limits)
        .chain(of("reason", reasons))
        .chain(of("outcome", outcomes))
        .chain(texts.map(str::to_owned));
    everything_happens(marks.collect(), |seed| {
        let mut rng = Rng::new(seed);
        let runs = (0..RUNS).map(|_| random_thinker(&mut rng)).collect();
        play(seed, runs, Weather::STORM, None)
    });
}

/// Each of these texts stands in a log.
fn everything_happens(mut missing: BTreeSet<String>, play: impl Fn(u64) -> Sim) {
    for seed in 0..1_000 {
        let sim = play(seed);
        for object in sim.0.borrow().objects.values() {
            for row in &*object.disk.rows.borrow() {
                missing.retain(|text| !row.body.contains(text));
            }
        }
        if missing.is_empty() {
            return;
        }
    }
    panic!("never happened: {missing:?}");
}

/// A run of three years, with every kind of long wait, takes no longer to simulate than any other.
#[test]
fn three_years_pass_in_a_moment() {
    let plan = serde_json::json!({ "steps": [
        { "id": "a", "sleep": "P365D" },
        { "id": "b", "wait_for": "go", "timeout": "P365D", "on_timeout": "continue" },
        { "id": "c", "approval": { "prompt": "still?" }, "timeout": "P365D", "on_timeout": "continue" },
        { "id": "d", "tool": "steady", "arguments": {} },
    ] });
    let sim = begin(1, vec![plan], Weather::CALM, None);
    let day_ms = 86_400_000;
    sim.run_until(START_MS + 4 * 365 * day_ms);
    let inner = sim.0.borrow();
    let run_id = inner.objects.keys().next().unwrap().clone();
    let state = inner.state_on_disk(&run_id).unwrap();
    assert_eq!(state.status.as_str(), "completed");
    let lasted_ms = state.ended_at.unwrap().ms_since(state.created_at);
    let years_ms = 3 * 365 * day_ms;
    assert!(
        (years_ms..years_ms + 60_000).contains(&lasted_ms),
        "{lasted_ms}"
    );
    assert_eq!(inner.sink.seen.len(), 1);
}
