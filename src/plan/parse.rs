//! A plan's JSON becomes a [`Plan`], or the list of all that is wrong with it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::definition::{Plan, Step};
use super::graph::Order;
use super::step::{Draft, Strings, read_step, read_template};
use crate::fields::{Fields, Flaws, shorten};
use crate::json::{Violation, pointer};
use crate::words::limits::PLAN_STEPS_MAX;

impl Plan {
    /// Reads `{ "steps": [ … ], "output": … }`.
    ///
    /// # Errors
    /// All that is wrong with it, each with its pointer in `value`.
    pub fn parse(value: &Value) -> Result<Plan, Vec<Violation>> {
        let mut flaws = Flaws::default();
        let plan = read_plan(value, &mut flaws);
        flaws.none_in(plan)
    }
}

/// Reads what a planner wants: a step by itself, in which no string is an expression. It has an id
/// already.
///
/// # Errors
/// All that is wrong with it, each with its pointer in `value`.
pub fn parse_intent(value: &Value) -> Result<Step, Vec<Violation>> {
    let mut flaws = Flaws::default();
    for member in ["depends_on", "when"] {
        if value.get(member).is_some() {
            flaws.add(
                pointer::push("", member),
                "this belongs to a fixed plan: what is wanted next is begun next",
            );
        }
    }
    let draft = read_step(value, "", Strings::Literal, &mut flaws);
    flaws.none_in(draft.step)
}

/// What is wrong is replaced by something harmless and noted, so that the rest is read as well.
fn read_plan(value: &Value, flaws: &mut Flaws) -> Plan {
    let mut plan = Plan {
        steps: Vec::new(),
        output: None,
    };
    let Some(fields) = Fields::of(value, "", flaws) else {
        return plan;
    };
    fields.refuse_unknown(&["steps", "output"], flaws);
    let steps = match fields.get("steps") {
        Some(_) => fields.array("steps", flaws),
        None => {
            flaws.add("", "\"steps\" is missing");
            None
        }
    };
    let Some(steps) = steps else {
        return plan;
    };
    if steps.is_empty() {
        flaws.add("/steps", "a plan has at least one step");
    }
    if steps.len() > PLAN_STEPS_MAX {
        flaws.add(
            "/steps",
            format!(
                "a plan has at most {PLAN_STEPS_MAX} steps, and this one has {}",
                steps.len()
            ),
        );
        return plan;
    }
    let mut drafts: Vec<Draft<'_>> = steps
        .iter()
        .enumerate()
        .map(|(index, step)| {
            let at = pointer::push("/steps", index);
            read_step(step, &at, Strings::Templates, flaws)
        })
        .collect();
    let places = place(&drafts, flaws);
    resolve(&mut drafts, &places, flaws);
    check_order(&drafts, &places, flaws);
    if let Some(output) = fields.get("output") {
        let (template, references) = read_template(output, "/output".to_owned(), flaws);
        for (at, id) in references {
            if !places.contains_key(id.as_str()) {
                flaws.add(at, no_such_step(&id));
            }
        }
        plan.output = Some(template);
    }
    plan.steps = drafts.into_iter().map(|draft| draft.step).collect();
    plan
}

/// The index by id. Of two steps with one id the first keeps it.
fn place(drafts: &[Draft<'_>], flaws: &mut Flaws) -> BTreeMap<String, usize> {
    let mut places = BTreeMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        let id = draft.step.id.as_str();
        if let Some(first) = places.get(id) {
            if !id.is_empty() {
                flaws.add(
                    pointer::push(&draft.pointer, "id"),
                    format!("step {first} has the id {:?} already", shorten(id)),
                );
            }
            continue;
        }
        places.insert(id.to_owned(), index);
    }
    places
}

fn resolve(drafts: &mut [Draft<'_>], places: &BTreeMap<String, usize>, flaws: &mut Flaws) {
    let count = drafts.len();
    for (index, draft) in drafts.iter_mut().enumerate() {
        let Some(depends_on) = draft.depends_on else {
            draft.step.needs = index.checked_sub(1).into_iter().collect();
            continue;
        };
        let mut named = vec![false; count];
        let list = pointer::push(&draft.pointer, "depends_on");
        for (entry, value) in depends_on.iter().enumerate() {
            let at = pointer::push(&list, entry);
            let Some(id) = value.as_str() else {
                flaws.add(at, "this must be the id of a step");
                continue;
            };
            match places.get(id) {
                None => flaws.add(at, no_such_step(id)),
                Some(need) if *need == index => flaws.add(at, "a step cannot wait for itself"),
                Some(need) => match named.get_mut(*need) {
                    Some(named) if *named => {
                        flaws.add(at, format!("{id:?} is named twice"));
                    }
                    place => {
                        if let Some(named) = place {
                            *named = true;
                        }
                        draft.step.needs.push(*need);
                    }
                },
            }
        }
        draft.step.needs.sort_unstable();
    }
}

fn check_order(drafts: &[Draft<'_>], places: &BTreeMap<String, usize>, flaws: &mut Flaws) {
    let needs: Vec<Vec<usize>> = drafts
        .iter()
        .map(|draft| draft.step.needs.clone())
        .collect();
    let order = Order::of(&needs);
    for cycle in order.cycles(&needs) {
        let at = cycle.first().and_then(|first| drafts.get(*first));
        flaws.add(
            at.map_or_else(String::new, |draft| {
                pointer::push(&draft.pointer, "depends_on")
            }),
            format!(
                "these steps wait for each other, so none can start: {}",
                spell(&cycle, drafts)
            ),
        );
    }
    for (index, draft) in drafts.iter().enumerate() {
        for (at, id) in &draft.references {
            let message = match places.get(id) {
                None => no_such_step(id),
                Some(read) if *read == index => "a step cannot read its own result".to_owned(),
                Some(read) => match order.is_before(*read, index) {
                    // Behind a cycle nothing is certain, and the cycle is named already.
                    Some(true) | None => continue,
                    Some(false) if order.is_before(index, *read) == Some(true) => {
                        format!("steps.{id} runs after this step, so it has no result yet")
                    }
                    Some(false) => format!(
                        "steps.{id} may not be finished when this step runs: add {id:?} to depends_on"
                    ),
                },
            };
            flaws.add(at, message);
        }
    }
}

fn spell(cycle: &[usize], drafts: &[Draft<'_>]) -> String {
    const NAMED_MAX: usize = 10;
    let id = |index: &usize| {
        drafts
            .get(*index)
            .map_or_else(String::new, |draft| shorten(&draft.step.id))
    };
    let mut names: Vec<String> = cycle.iter().take(NAMED_MAX).map(id).collect();
    if cycle.len() > NAMED_MAX {
        names.push(format!("({} more)", cycle.len() - NAMED_MAX));
    }
    names.extend(cycle.first().map(id));
    names.join(" -> ")
}

fn no_such_step(id: &str) -> String {
    format!("there is no step {:?} in this plan", shorten(id))
}
