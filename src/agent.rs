//! An agent: who decides what a run does, with which tools, and within which limits.

use serde_json::{Map, Value};

use crate::fields::{Fields, Flaws, shorten};
use crate::json::{Violation, pointer};
use crate::plan::{Action, Plan, parse_versioned_name};
use crate::words::DurationMs;
use crate::words::limits::{MAX_PARALLEL_DEFAULT, PLAN_STEPS_MAX};

/// Steps of a run whose plan is not fixed: each stays in its log for good.
const MAX_STEPS_MAX: u64 = 10_000;
const MAX_STEPS_DEFAULT: u32 = 100;
const MAX_DEPTH_MAX: u64 = 64;
const MAX_DEPTH_DEFAULT: u32 = 4;

/// One version of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// For people; empty when none was given.
    pub description: String,
    /// The tools it may call, `name` or `name@version`, each once. Where the definition has no list,
    /// those of its plan.
    pub tools: Vec<String>,
    /// Who decides.
    pub planner: Planner,
    /// The JSON Schema of a run's input.
    pub input_schema: Option<Value>,
    /// What a run may use up.
    pub limits: Limits,
}

/// Who decides what a run does.
#[derive(Clone, Debug, PartialEq)]
pub enum Planner {
    /// A fixed plan, and the JSON from which it can be parsed again.
    Plan(Plan, Value),
    /// Nobody is called: intents arrive as envelopes.
    External,
}

/// The bounds of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Steps in all.
    pub max_steps: u32,
    /// Steps in flight at once.
    pub max_parallel: u32,
    /// Child runs below child runs; 0 means that it starts none.
    pub max_depth: u32,
    /// Of all its model calls together.
    pub max_tokens: Option<u64>,
    /// From the run's start to its end.
    pub deadline_ms: Option<i64>,
}

impl Agent {
    /// Reads a definition. The schema in it is kept, not compiled.
    ///
    /// # Errors
    /// All that is wrong with it, each with its pointer in `value`.
    pub fn parse(value: &Value) -> Result<Agent, Vec<Violation>> {
        let mut flaws = Flaws::default();
        let agent = read_agent(value, &mut flaws);
        flaws
            .none_in(agent)?
            .ok_or_else(|| vec![Violation::new("", "\"planner\" is missing")])
    }

    /// The definition that an inline plan stands for: an agent that has only a planner.
    #[must_use]
    pub fn inline_definition(plan: &Value) -> Value {
        let mut planner = Map::new();
        planner.insert("kind".to_owned(), "plan".into());
        if let Value::Object(members) = plan {
            planner.extend(members.clone());
        }
        // Not by the `json!` macro, which respells the exponents of numbers.
        Value::Object(Map::from_iter([(
            "planner".to_owned(),
            Value::Object(planner),
        )]))
    }

    /// The tools that a run of it may need, `name` or `name@version`: those of its plan, or for an
    /// external planner all it may name.
    #[must_use]
    pub fn tools_needed(&self) -> Vec<String> {
        match &self.planner {
            Planner::External => self.tools.clone(),
            Planner::Plan(plan, _) => tools_of(plan),
        }
    }

    /// Its plan, where that is fixed.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        match &self.planner {
            Planner::Plan(plan, _) => Some(plan),
            Planner::External => None,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_steps: MAX_STEPS_DEFAULT,
            max_parallel: u32::try_from(MAX_PARALLEL_DEFAULT).unwrap_or(u32::MAX),
            max_depth: MAX_DEPTH_DEFAULT,
            max_tokens: None,
            deadline_ms: None,
        }
    }
}

impl Limits {
    /// A fixed plan bounds its own steps, so without a limit of its own any plan may run.
    fn for_plan() -> Self {
        Self {
            max_steps: u32::try_from(PLAN_STEPS_MAX).unwrap_or(u32::MAX),
            ..Self::default()
        }
    }
}

fn read_agent(value: &Value, flaws: &mut Flaws) -> Option<Agent> {
    let fields = Fields::of(value, "", flaws)?;
    fields.refuse_unknown(
        &["description", "tools", "planner", "input_schema", "limits"],
        flaws,
    );
    let description = fields.text("description", flaws).unwrap_or_default();
    let listed = read_tools(&fields, flaws);
    let planner = read_planner(&fields, flaws);
    let input_schema = fields.schema("input_schema", flaws);
    let limits = read_limits(&fields, planner.as_ref(), flaws);
    if let (Some(Planner::Plan(plan, _)), Some(listed)) = (&planner, &listed) {
        check_tools(plan, listed, flaws);
    }
    let planner = planner?;
    let tools = match (&planner, listed) {
        (_, Some(listed)) => listed,
        (Planner::Plan(plan, _), None) => tools_of(plan),
        (Planner::External, None) => Vec::new(),
    };
    Some(Agent {
        description: description.to_owned(),
        tools,
        planner,
        input_schema,
        limits,
    })
}

fn read_tools(fields: &Fields<'_>, flaws: &mut Flaws) -> Option<Vec<String>> {
    let mut tools: Vec<String> = Vec::new();
    for (index, value) in fields.array("tools", flaws)?.iter().enumerate() {
        let at = pointer::push(&fields.at("tools"), index);
        match value.as_str() {
            Some(tool) if tools.iter().any(|known| known == tool) => {
                flaws.add(at, format!("the tool {:?} is named twice", shorten(tool)));
            }
            Some(tool) if parse_versioned_name(tool).is_some() => tools.push(tool.to_owned()),
            _ => flaws.add(at, "this must be the name of a tool, or name@version"),
        }
    }
    Some(tools)
}

fn read_planner(fields: &Fields<'_>, flaws: &mut Flaws) -> Option<Planner> {
    if fields.get("planner").is_none() {
        flaws.add("", "\"planner\" is missing");
    }
    let planner = fields.object("planner", flaws)?;
    match planner.required_text("kind", flaws)? {
        "plan" => {
            // What is kept parses again by itself: the kind is the planner's, not the plan's.
            let members: Map<String, Value> = planner
                .iter()
                .filter(|(name, _)| *name != "kind")
                .map(|(name, value)| (name.to_owned(), value.clone()))
                .collect();
            let raw = Value::Object(members);
            match Plan::parse(&raw) {
                Ok(plan) => Some(Planner::Plan(plan, raw)),
                Err(violations) => {
                    flaws.add_all(planner.pointer(), violations);
                    None
                }
            }
        }
        "external" => {
            planner.refuse_unknown(&["kind"], flaws);
            Some(Planner::External)
        }
        kind @ ("model" | "http") => {
            flaws.add(
                planner.at("kind"),
                format!("{kind:?} is not run by this release: it runs plan and external"),
            );
            None
        }
        _ => {
            flaws.add(planner.at("kind"), "this must be plan or external");
            None
        }
    }
}

fn read_limits(fields: &Fields<'_>, planner: Option<&Planner>, flaws: &mut Flaws) -> Limits {
    let plan = match planner {
        Some(Planner::Plan(plan, _)) => Some(plan),
        _ => None,
    };
    let mut limits = match plan {
        Some(_) => Limits::for_plan(),
        None => Limits::default(),
    };
    let Some(given) = fields.object("limits", flaws) else {
        return limits;
    };
    given.refuse_unknown(
        &[
            "max_steps",
            "max_parallel",
            "max_depth",
            "max_tokens",
            "deadline",
        ],
        flaws,
    );
    let bound = |name: &str, min: u64, max: u64, place: &mut u32, flaws: &mut Flaws| {
        let number = given.integer(name, min..=max, flaws);
        if let Some(number) = number.and_then(|number| u32::try_from(number).ok()) {
            *place = number;
        }
    };
    bound("max_steps", 1, MAX_STEPS_MAX, &mut limits.max_steps, flaws);
    let parallel_max = u64::try_from(PLAN_STEPS_MAX).unwrap_or(u64::MAX);
    bound(
        "max_parallel",
        1,
        parallel_max,
        &mut limits.max_parallel,
        flaws,
    );
    bound("max_depth", 0, MAX_DEPTH_MAX, &mut limits.max_depth, flaws);
    // Larger ones could not be counted in JSON by every reader.
    limits.max_tokens = given.integer("max_tokens", 1..=(1 << 53) - 1, flaws);
    limits.deadline_ms = given.duration_ms("deadline", DurationMs::MAX, flaws);

    let steps = plan.map_or(0, |plan| plan.steps.len());
    if usize::try_from(limits.max_steps).is_ok_and(|max| steps > max) {
        flaws.add(
            given.at("max_steps"),
            format!("the plan has {steps} steps, more than this allows"),
        );
    }
    limits
}

/// A list of tools binds the plan as it would bind a model.
fn check_tools(plan: &Plan, listed: &[String], flaws: &mut Flaws) {
    let bare = |text| parse_versioned_name(text).map(|found| found.name);
    for (index, step) in plan.steps.iter().enumerate() {
        if let Action::Tool { tool, .. } = &step.action
            && !listed.iter().any(|known| bare(known) == bare(tool))
        {
            flaws.add(
                format!("/planner/steps/{index}/tool"),
                format!("{tool:?} is not among the agent's tools"),
            );
        }
    }
}

fn tools_of(plan: &Plan) -> Vec<String> {
    let mut tools: Vec<String> = Vec::new();
    for step in &plan.steps {
        if let Action::Tool { tool, .. } = &step.action
            && !tools.contains(tool)
        {
            tools.push(tool.clone());
        }
    }
    tools
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn flaws(value: &Value) -> Vec<String> {
        Agent::parse(value)
            .unwrap_err()
            .into_iter()
            .map(|violation| format!("{}: {}", violation.pointer, violation.message))
            .collect()
    }

    #[test]
    fn an_agent_with_a_plan() {
        let agent = Agent::parse(&json!({
            "description": "Buys parts", "tools": ["vendor.quote", "payments.charge@2"],
            "planner": { "kind": "plan", "steps": [{ "id": "a", "tool": "vendor.quote@3" }], "output": "{{ steps.a.result }}" },
            "input_schema": { "type": "object" },
            "limits": { "max_steps": 100, "max_parallel": 2, "max_depth": 0, "max_tokens": 200_000, "deadline": "P14D" }
        }))
        .unwrap();
        assert_eq!(agent.tools, ["vendor.quote", "payments.charge@2"]);
        assert_eq!(
            agent.limits,
            Limits {
                max_steps: 100,
                max_parallel: 2,
                max_depth: 0,
                max_tokens: Some(200_000),
                deadline_ms: Some(14 * 86_400_000)
            }
        );
        let Planner::Plan(plan, raw) = &agent.planner else {
            panic!()
        };
        assert_eq!(&Plan::parse(raw).unwrap(), plan);
        assert_eq!(agent.plan(), Some(plan));
    }

    #[test]
    fn defaults() {
        let plan = json!({ "steps": [{ "id": "a", "tool": "x" }, { "id": "b", "tool": "y@1" }, { "id": "c", "tool": "x" }] });
        let inline = Agent::parse(&Agent::inline_definition(&plan)).unwrap();
        assert_eq!(inline.tools, ["x", "y@1"]);
        assert_eq!(inline.limits.max_steps, 500);
        let external = Agent::parse(&json!({ "planner": { "kind": "external" } })).unwrap();
        assert_eq!(external.planner, Planner::External);
        assert_eq!(
            external.limits,
            Limits {
                max_steps: 100,
                max_parallel: 8,
                max_depth: 4,
                max_tokens: None,
                deadline_ms: None
            }
        );
        assert!(external.plan().is_none());
    }

    #[test]
    fn flaws_have_their_places() {
        let step = json!({ "id": "a", "tool": "x" });
        for (agent, expected) in [
            (json!(1), ": this must be an object"),
            (json!({}), ": \"planner\" is missing"),
            (json!({ "planner": {} }), "/planner: \"kind\" is missing"),
            (
                json!({ "planner": { "kind": "model" } }),
                "/planner/kind: \"model\" is not run by this release",
            ),
            (
                json!({ "planner": { "kind": "http", "url": "x" } }),
                "/planner/kind: \"http\" is not run by this release",
            ),
            (
                json!({ "planner": { "kind": "magic" } }),
                "/planner/kind: this must be plan or external",
            ),
            (
                json!({ "planner": { "kind": "external", "url": "x" } }),
                "/planner/url: ",
            ),
            (
                json!({ "planner": { "kind": "plan", "steps": [{ "id": "a" }] } }),
                "/planner/steps/0: a step has exactly one action",
            ),
            (
                json!({ "planner": { "kind": "plan", "steps": [step, { "id": "b", "tool": "x" }] }, "limits": { "max_steps": 1 } }),
                "/limits/max_steps: the plan has 2 steps",
            ),
            (
                json!({ "planner": { "kind": "plan", "steps": [step] }, "tools": ["y"] }),
                "/planner/steps/0/tool: \"x\" is not among",
            ),
            (
                json!({ "planner": { "kind": "external" }, "tools": ["A"] }),
                "/tools/0: ",
            ),
            (
                json!({ "planner": { "kind": "external" }, "tools": ["a", "a"] }),
                "/tools/1: ",
            ),
            (
                json!({ "planner": { "kind": "external" }, "limits": { "max_parallel": 0 } }),
                "/limits/max_parallel: ",
            ),
            (
                json!({ "planner": { "kind": "external" }, "limits": { "deadline": "soon" } }),
                "/limits/deadline: ",
            ),
            (
                json!({ "planner": { "kind": "external" }, "limits": { "max_step": 1 } }),
                "/limits/max_step: ",
            ),
            (
                json!({ "planner": { "kind": "external" }, "input_schema": "x" }),
                "/input_schema: ",
            ),
        ] {
            let found = flaws(&agent);
            assert!(
                found.iter().any(|flaw| flaw.starts_with(expected)),
                "{agent}: {found:?}"
            );
        }
        let inline = Agent::inline_definition(&json!({ "steps": [{ "id": "a" }] }));
        let found = Agent::parse(&inline).unwrap_err();
        assert_eq!(found[0].pointer, "/planner/steps/0");
    }
}
