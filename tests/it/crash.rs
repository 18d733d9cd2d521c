//! Every scenario with one fault at every port call: before its effect and after it, with the
//! caller alive and dead. The flow touches the world only through its ports, so this is every place
//! where it can break.

use serde_json::{Value, json};

use crate::support::scenario::{of_agent, play, straight};
use crate::support::world::{Planned, PlannedFault, Weather};

fn scenarios() -> Vec<(&'static str, Value)> {
    vec![
        ("straight", straight("steady")),
        ("once", straight("once")),
        (
            "verified",
            json!({ "steps": [{ "id": "a", "tool": "once-verified", "arguments": {} },
                              { "id": "b", "tool": "steady", "arguments": {} }] }),
        ),
        (
            "wide",
            json!({ "steps": [
                { "id": "a", "tool": "steady", "arguments": {}, "depends_on": [] },
                { "id": "b", "tool": "steady", "arguments": {}, "depends_on": [] },
                { "id": "c", "sleep": "PT2S", "depends_on": [] },
                { "id": "d", "tool": "steady", "arguments": {}, "depends_on": ["a", "b", "c"] },
            ] }),
        ),
        (
            "failing",
            json!({ "steps": [
                { "id": "a", "tool": "steady", "arguments": {}, "depends_on": [] },
                { "id": "b", "tool": "reject", "arguments": {}, "depends_on": [], "on_failure": "fail" },
                { "id": "c", "tool": "steady", "arguments": {} },
            ] }),
        ),
        (
            "signal",
            json!({ "steps": [{ "id": "a", "wait_for": "go" },
                              { "id": "b", "tool": "steady", "arguments": {} }] }),
        ),
        (
            "timeout",
            json!({ "steps": [{ "id": "a", "wait_for": "go", "timeout": "PT5S", "on_timeout": "continue" },
                              { "id": "b", "tool": "steady", "arguments": {} }] }),
        ),
        (
            "guarded",
            json!({ "steps": [{ "id": "a", "tool": "guarded", "arguments": {} },
                              { "id": "b", "approval": { "prompt": "and now?" } }] }),
        ),
        (
            "callback",
            json!({ "steps": [{ "id": "a", "tool": "later", "arguments": {} },
                              { "id": "b", "tool": "steady", "arguments": {} }] }),
        ),
        (
            "child",
            json!({ "steps": [{ "id": "a", "run": { "agent": "parent", "input": {} } },
                              { "id": "b", "tool": "steady", "arguments": {} }] }),
        ),
        (
            "children called off",
            json!({ "steps": [
                { "id": "a", "run": { "agent": "parent", "input": {} }, "depends_on": [] },
                { "id": "b", "run": { "agent": "waiting", "input": {} }, "depends_on": [] },
                { "id": "c", "tool": "reject", "arguments": {}, "depends_on": [], "on_failure": "fail" },
            ] }),
        ),
        (
            "failing child",
            json!({ "steps": [{ "id": "a", "run": { "agent": "failing", "input": {} }, "on_failure": "continue" },
                              { "id": "b", "run": { "agent": "missing", "input": {} } }] }),
        ),
        (
            "dead letter",
            json!({ "steps": [{ "id": "a", "tool": "reject", "arguments": {} }] }),
        ),
        // Two tools at once, then the answer.
        ("a model's two calls", of_agent("two")),
        // Malformed, told so, mended.
        ("a model mends", of_agent("mend")),
        // Malformed until a person is asked, who does nothing.
        ("a model does not mend", of_agent("broken")),
        // At its limit, which is raised.
        ("a model at its limit", of_agent("limit")),
        // A tool that wants leave, and a question to a person.
        ("a model asks", of_agent("approve")),
        // Told to come again.
        ("a busy model", of_agent("busy")),
        // A child run beside a sleep.
        ("a model's child", of_agent("start")),
    ]
}

#[test]
fn no_single_fault_breaks_a_promise() {
    let mut tried = 0;
    for (name, plan) in scenarios() {
        let calm = play(1, vec![plan.clone()], Weather::CALM, None);
        let calls = calm.0.borrow().port_calls;
        assert!(calls > 5, "{name} makes only {calls} port calls");
        for at_call in 0..calls {
            for fault in PlannedFault::ALL {
                let planned = Planned { at_call, fault };
                let played = std::panic::catch_unwind(|| {
                    drop(play(1, vec![plan.clone()], Weather::CALM, Some(planned)));
                });
                assert!(played.is_ok(), "{name}: {planned:?}");
                tried += 1;
            }
        }
    }
    println!("{tried} single faults");
}
