use serde_json::{Value, json};

use super::*;
use crate::json::Violation;

fn parse(steps: Value) -> Result<Plan, Vec<Violation>> {
    Plan::parse(&json!({ "steps": steps }))
}

fn flaws(value: &Value) -> Vec<String> {
    Plan::parse(value)
        .unwrap_err()
        .into_iter()
        .map(|violation| format!("{}: {}", violation.pointer, violation.message))
        .collect()
}

fn needs(plan: &Plan) -> Vec<Vec<usize>> {
    plan.steps.iter().map(|step| step.needs.clone()).collect()
}

#[test]
fn every_action_is_read() {
    let plan = parse(json!([
        { "id": "quote", "tool": "vendor.quote@2", "arguments": { "sku": "{{ input.sku }}" }, "on_failure": "continue" },
        { "id": "nap", "sleep": "P2D" },
        { "id": "until", "sleep_until": "2026-12-01T00:00:00Z" },
        { "id": "then", "sleep_until": "{{ steps.quote.result.at }}" },
        { "id": "signal", "wait_for": "quote.received", "timeout": "P7D", "on_timeout": "continue" },
        { "id": "first", "wait_for": ["paid", "refused"] },
        { "id": "ask", "approval": { "prompt": "Pay {{ input.amount }}?", "schema": { "type": "object" } }, "timeout": "PT0S", "on_reject": "continue" },
        { "id": "child", "run": { "agent": "buyer" }, "when": "{{ steps.ask.result.decision == 'approved' }}" },
        { "id": "tell", "emit": { "type": "order.placed", "data": "{{ steps.child.result }}" } },
    ]))
    .unwrap();
    let kinds: Vec<&str> = plan.steps.iter().map(|step| step.action.kind()).collect();
    assert_eq!(
        kinds,
        [
            "tool", "sleep", "sleep", "sleep", "wait_for", "wait_for", "approval", "run", "emit"
        ]
    );
    assert_eq!(plan.steps[0].on_failure, OnFailure::Continue);
    assert_eq!(
        plan.steps[0].action.name().as_deref(),
        Some("vendor.quote@2")
    );
    assert_eq!(
        plan.steps[1].action,
        Action::Sleep {
            duration_ms: 2 * 86_400_000
        }
    );
    assert_eq!(plan.steps[4].timeout_ms, Some(7 * 86_400_000));
    assert_eq!(plan.steps[4].on_timeout, OnTimeout::Continue);
    assert!(matches!(
        &plan.steps[4].action,
        Action::WaitFor { several: false, .. }
    ));
    assert!(
        matches!(&plan.steps[5].action, Action::WaitFor { names, several: true } if names.len() == 2)
    );
    assert_eq!(plan.steps[6].timeout_ms, Some(0));
    assert_eq!(plan.steps[6].on_reject, OnReject::Continue);
    match &plan.steps[7].action {
        Action::Run { input, .. } => assert_eq!(input.literal(), Some(&json!({}))),
        other => panic!("{other:?}"),
    }
    assert!(plan.steps[7].when.is_some());
    assert_eq!(needs(&plan)[0], Vec::<usize>::new());
    assert_eq!(needs(&plan)[8], [7]);
}

#[test]
fn steps_follow_the_list_unless_they_say_otherwise() {
    let plan = parse(json!([
        { "id": "a", "sleep": "PT1S" },
        { "id": "b", "sleep": "PT1S" },
        { "id": "c", "sleep": "PT1S", "depends_on": [] },
        { "id": "d", "sleep": "PT1S", "depends_on": ["c", "a"] },
    ]))
    .unwrap();
    assert_eq!(needs(&plan), [vec![], vec![0], vec![], vec![0, 2]]);
    assert_eq!(plan.ready(|_| false, |_| false), [0, 2]);
    assert_eq!(plan.ready(|index| index == 0, |index| index == 0), [1, 2]);
    assert_eq!(plan.ready(|index| index != 3, |index| index != 3), [3]);
    assert_eq!(plan.ancestors(3), [0, 2]);
    assert_eq!(plan.index_of("d"), Some(3));
}

#[test]
fn each_mistake_has_its_place_and_its_advice() {
    let ok = |id: &str| json!({ "id": id, "sleep": "PT1S" });
    for (step, expected) in [
        (json!(5), "/steps/1: this must be an object"),
        (json!({ "sleep": "PT1S" }), "/steps/1: \"id\" is missing"),
        (
            json!({ "id": "A b", "sleep": "PT1S" }),
            "/steps/1/id: expected",
        ),
        (
            json!({ "id": "a", "sleep": "PT1S" }),
            "/steps/1/id: step 0 has the id \"a\" already",
        ),
        (
            json!({ "id": "x" }),
            "/steps/1: a step has exactly one action: tool, sleep",
        ),
        (
            json!({ "id": "x", "sleep": "PT1S", "tool": "t" }),
            "/steps/1: a step has exactly one action, and this one has tool and sleep",
        ),
        (
            json!({ "id": "x", "sleep": "PT1S", "retries": 3 }),
            "/steps/1/retries: \"retries\" is not known here",
        ),
        (
            json!({ "id": "x", "sleep": "5 parsecs" }),
            "/steps/1/sleep: ",
        ),
        (
            json!({ "id": "x", "sleep": -1 }),
            "/steps/1/sleep: this must be a string",
        ),
        (json!({ "id": "x", "sleep": "-PT1S" }), "/steps/1/sleep: "),
        (json!({ "id": "x", "sleep": "P3651D" }), "/steps/1/sleep: "),
        (
            json!({ "id": "x", "sleep_until": "tomorrow" }),
            "/steps/1/sleep_until: ",
        ),
        (
            json!({ "id": "x", "tool": "t@0" }),
            "/steps/1/tool: \"t@0\" is no name",
        ),
        (
            json!({ "id": "x", "tool": "t", "timeout": "PT1S" }),
            "/steps/1/timeout: a tool's timeout and callback_timeout are part of its own definition",
        ),
        (
            json!({ "id": "x", "wait_for": "s", "on_reject": "fail" }),
            "/steps/1/on_reject: only an approval, or the call of a tool that requires one",
        ),
        (
            json!({ "id": "x", "tool": "t", "arguments": [1] }),
            "/steps/1/arguments: arguments are an object",
        ),
        (
            json!({ "id": "x", "tool": "t", "arguments": "text" }),
            "/steps/1/arguments: arguments are an object",
        ),
        (
            json!({ "id": "x", "sleep": "PT1S", "arguments": {} }),
            "/steps/1/arguments: arguments belong to a step with a tool",
        ),
        (
            json!({ "id": "x", "wait_for": "s", "on_timeout": "continue" }),
            "/steps/1/on_timeout: this step has no timeout",
        ),
        (
            json!({ "id": "x", "wait_for": [] }),
            "/steps/1/wait_for: a wait names 1 to 32",
        ),
        (
            json!({ "id": "x", "wait_for": ["a", "b/c"] }),
            "/steps/1/wait_for/1: expected",
        ),
        (
            json!({ "id": "x", "wait_for": ["a", "a"] }),
            "/steps/1/wait_for/1: the signal \"a\" is named twice",
        ),
        (
            json!({ "id": "x", "wait_for": "s", "timeout": "P11Y" }),
            "/steps/1/timeout: ",
        ),
        (
            json!({ "id": "x", "approval": {} }),
            "/steps/1/approval: \"prompt\" is missing",
        ),
        (
            json!({ "id": "x", "approval": { "prompt": "?", "schema": 1 } }),
            "/steps/1/approval/schema: a JSON Schema is",
        ),
        (
            json!({ "id": "x", "approval": { "prompt": "{{ oops }}" } }),
            "/steps/1/approval/prompt: ",
        ),
        (
            json!({ "id": "x", "run": {} }),
            "/steps/1/run: \"agent\" is missing",
        ),
        (
            json!({ "id": "x", "run": { "agent": "b" }, "timeout": "PT1S" }),
            "/steps/1/timeout: a child run's time",
        ),
        (
            json!({ "id": "x", "emit": { "data": 1 } }),
            "/steps/1/emit: \"type\" is missing",
        ),
        (
            json!({ "id": "x", "emit": { "type": "{{ input.t }}" } }),
            "/steps/1/emit/type: an event's type",
        ),
        (
            json!({ "id": "x", "sleep": "PT1S", "on_failure": "retry" }),
            "/steps/1/on_failure: this must be one of dead_letter, fail, continue",
        ),
        (
            json!({ "id": "x", "sleep": "PT1S", "when": "input.a" }),
            "/steps/1/when: a condition is one expression",
        ),
        (
            json!({ "id": "x", "sleep": "PT1S", "when": "{{ input.a + 1 }}" }),
            "/steps/1/when: + is not known",
        ),
        (
            json!({ "id": "x", "sleep": "PT1S", "when": "{{ input.a }} {{ input.b }}" }),
            "/steps/1/when: ",
        ),
        (
            json!({ "id": "x", "tool": "t", "arguments": { "a": ["{{ input"] } }),
            "/steps/1/arguments/a/0: this {{ has no }}",
        ),
        (
            json!({ "id": "x", "tool": "t", "arguments": { "a": "{{ steps.nope.result }}" } }),
            "/steps/1/arguments/a: there is no step \"nope\"",
        ),
        (
            json!({ "id": "x", "tool": "t", "arguments": { "a": "{{ steps.x.result }}" } }),
            "/steps/1/arguments/a: a step cannot read its own result",
        ),
        (
            json!({ "id": "x", "tool": "t", "arguments": { "a": "{{ steps.z.result }}" } }),
            "/steps/1/arguments/a: steps.z runs after this step",
        ),
        (
            json!({ "id": "x", "depends_on": [], "sleep": "PT1S", "when": "{{ steps.a.result }}" }),
            "/steps/1/when: steps.a may not be finished when this step runs: add \"a\" to depends_on",
        ),
        (
            json!({ "id": "x", "sleep": "PT1S", "depends_on": ["nope"] }),
            "/steps/1/depends_on/0: there is no step \"nope\"",
        ),
        (
            json!({ "id": "x", "sleep": "PT1S", "depends_on": ["x"] }),
            "/steps/1/depends_on/0: a step cannot wait for itself",
        ),
        (
            json!({ "id": "x", "sleep": "PT1S", "depends_on": ["a", "a"] }),
            "/steps/1/depends_on/1: \"a\" is named twice",
        ),
        (
            json!({ "id": "x", "sleep": "PT1S", "depends_on": "a" }),
            "/steps/1/depends_on: this must be an array",
        ),
        (
            json!({ "id": "x", "sleep": "PT1S", "depends_on": ["z"] }),
            "/steps/1/depends_on: these steps wait for each other, so none can start: x -> z -> x",
        ),
    ] {
        let found = flaws(&json!({ "steps": [ok("a"), step, ok("z")] }));
        assert!(
            found.iter().any(|flaw| flaw.starts_with(expected)),
            "{step}\n wanted {expected}\n found {found:?}"
        );
    }
}

#[test]
fn the_plan_itself_is_checked() {
    for (plan, expected) in [
        (json!([]), ": this must be an object"),
        (json!({}), ": \"steps\" is missing"),
        (json!({ "steps": {} }), "/steps: this must be an array"),
        (
            json!({ "steps": [] }),
            "/steps: a plan has at least one step",
        ),
        (
            json!({ "steps": [], "kind": "plan" }),
            "/kind: \"kind\" is not known here",
        ),
        (
            json!({ "steps": [{ "id": "a", "sleep": "PT1S" }], "output": { "x": "{{ steps.b.result }}" } }),
            "/output/x: there is no step \"b\"",
        ),
        (
            json!({ "steps": [{ "id": "a", "sleep": "PT1S" }], "output": "{{" }),
            "/output: this {{ has no }}",
        ),
        (
            json!({ "steps": vec![json!(1); 501] }),
            "/steps: a plan has at most 500 steps, and this one has 501",
        ),
    ] {
        let found = flaws(&plan);
        assert!(
            found.iter().any(|flaw| flaw.starts_with(expected)),
            "{found:?}"
        );
    }
}

#[test]
fn all_flaws_come_at_once() {
    let found = flaws(&json!({ "steps": [
        { "id": "a", "sleep": "x" },
        { "id": "a", "tool": "?" },
        { "id": "c", "wait_for": 1, "extra": true },
    ], "output": "{{ steps.d.result }}" }));
    assert_eq!(found.len(), 6, "{found:#?}");
}

#[test]
fn a_dense_plan_of_full_size_is_read_quickly_and_walked_once() {
    let steps: Vec<Value> = (0..500)
        .map(|index| {
            let before: Vec<String> = (0..index).map(|step| format!("s{step}")).collect();
            json!({ "id": format!("s{index}"), "sleep": "PT1S", "depends_on": before,
                    "when": "{{ (steps.s0.result ?? true) == true }}" })
        })
        .collect();
    let mut steps_from_1 = steps;
    steps_from_1[0]["when"] = json!("{{ true }}");
    let plan = parse(json!(steps_from_1)).unwrap();
    assert_eq!(plan.ancestors(499).len(), 499);

    let knot: Vec<Value> = (0..500)
        .map(|index| {
            let all: Vec<String> = (0..500)
                .filter(|s| *s != index)
                .map(|s| format!("s{s}"))
                .collect();
            json!({ "id": format!("s{index}"), "sleep": "PT1S", "depends_on": all })
        })
        .collect();
    let found = flaws(&json!({ "steps": knot }));
    assert_eq!(
        found,
        ["/steps/0/depends_on: these steps wait for each other, so none can start: s0 -> s1 -> s0"]
    );
}

#[test]
fn a_long_cycle_is_named_in_short() {
    let ring: Vec<Value> = (0..20)
        .map(|index| json!({ "id": format!("s{index}"), "sleep": "PT1S", "depends_on": [format!("s{}", (index + 1) % 20)] }))
        .collect();
    let found = flaws(&json!({ "steps": ring }));
    assert_eq!(found.len(), 1);
    assert!(
        found[0].ends_with("s8 -> s9 -> (10 more) -> s0"),
        "{found:?}"
    );
}
