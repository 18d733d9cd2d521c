//! A person lets a run use up more than its agent says.

use crate::agent::Limits;
use crate::fields::{Fields, Flaws};
use crate::json::{Json, Violation};
use crate::run::event::{Event, RequestRef};

use super::{Refusal, Reply, Turn, replayed, tick};

/// The limits that can be changed while a run is under way.
const RAISED: [&str; 5] = [
    "max_steps",
    "max_rounds",
    "max_repeats",
    "max_tokens",
    "max_parallel",
];

pub(super) fn raise(
    turn: &mut Turn,
    limits: Json,
    comment: Option<String>,
    request: Option<RequestRef>,
) -> Result<Reply, Refusal> {
    if let Some(reply) = replayed(&turn.state, request.as_ref())? {
        return Ok(reply);
    }
    if turn.state.status.is_end() {
        return Err(Refusal::Ended {
            status: turn.state.status.as_str().to_owned(),
        });
    }
    check(&turn.state.limits, &limits)?;
    turn.record(
        None,
        Event::LimitRaised {
            limits,
            comment,
            request,
        },
    )?;
    // What stood still goes on, as far as the new limits let it.
    tick::tick(turn)
}

/// A limit is raised and never lowered: what was begun within it stays within it.
fn check(now: &Limits, given: &Json) -> Result<(), Refusal> {
    let mut flaws = Flaws::default();
    let mut raised = *now;
    let Some(fields) = Fields::of(given, "", &mut flaws) else {
        return refuse(flaws);
    };
    fields.refuse_unknown(&RAISED, &mut flaws);
    raised.read_over(&fields, &mut flaws);
    let pairs = [
        (
            "max_steps",
            Some(now.max_steps.into()),
            Some(raised.max_steps.into()),
        ),
        (
            "max_rounds",
            now.max_rounds.map(u64::from),
            raised.max_rounds.map(u64::from),
        ),
        (
            "max_repeats",
            Some(now.max_repeats.into()),
            Some(raised.max_repeats.into()),
        ),
        ("max_tokens", now.max_tokens, raised.max_tokens),
        (
            "max_parallel",
            Some(now.max_parallel.into()),
            Some(raised.max_parallel.into()),
        ),
    ];
    for (name, before, after) in pairs {
        let lowered = match (before, after) {
            (Some(before), Some(after)) => after < before,
            (None, Some(_)) => true,
            _ => false,
        };
        if lowered {
            let before = before.map_or("none".to_owned(), |before| before.to_string());
            flaws.add(
                format!("/{name}"),
                format!("a limit is raised and never lowered; now it is {before}"),
            );
        }
    }
    if RAISED.iter().all(|name| given.get(name).is_none()) {
        flaws.add("", format!("one of {} is to be raised", RAISED.join(", ")));
    }
    refuse(flaws)
}

fn refuse(flaws: Flaws) -> Result<(), Refusal> {
    let refused = |violations: Vec<Violation>| Refusal::Invalid { violations };
    flaws.none_in(()).map_err(refused)
}
