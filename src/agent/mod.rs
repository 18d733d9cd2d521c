//! An agent: who decides what a run does, with which tools, and within which limits.

mod keys;
mod limits;
mod planner;

use serde_json::{Map, Value};

use crate::fields::{Fields, Flaws, shorten};
use crate::json::{Violation, pointer};
use crate::plan::{Action, Plan, parse_versioned_name};

pub use keys::{key, names_keys, with_keys_hidden, without_keys};
pub use limits::{LIMIT_NAMES, Limits};
pub use planner::{EngineTool, HttpPlanner, Mind, Model, ModelPlanner, Provider};

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
    /// A language model, one recorded round at a time.
    Model(Box<ModelPlanner>),
    /// A service of the tenant's own, one recorded round at a time.
    Http(Box<HttpPlanner>),
    /// Nobody is called: intents arrive as envelopes.
    External,
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

    /// The tools that a run of it may need, `name` or `name@version`: those of its plan, or for any
    /// other planner all it may name.
    #[must_use]
    pub fn tools_needed(&self) -> Vec<String> {
        match &self.planner {
            Planner::Plan(plan, _) => tools_of(plan),
            Planner::Model(_) | Planner::Http(_) | Planner::External => self.tools.clone(),
        }
    }

    /// Its plan, where that is fixed.
    #[must_use]
    pub fn plan(&self) -> Option<&Plan> {
        match &self.planner {
            Planner::Plan(plan, _) => Some(plan),
            Planner::Model(_) | Planner::Http(_) | Planner::External => None,
        }
    }

    /// Who is asked for the next intents, one round at a time.
    #[must_use]
    pub fn mind(&self) -> Option<Mind<'_>> {
        match &self.planner {
            Planner::Model(planner) => Some(Mind::Model(planner)),
            Planner::Http(planner) => Some(Mind::Http(planner)),
            Planner::Plan(..) | Planner::External => None,
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
    let planner = planner::read(&fields, flaws);
    let input_schema = fields.schema("input_schema", flaws);
    let plan = match &planner {
        Some(Planner::Plan(plan, _)) => Some(plan),
        _ => None,
    };
    let limits = Limits::read(&fields, plan, flaws);
    if let (Some(Planner::Plan(plan, _)), Some(listed)) = (&planner, &listed) {
        check_tools(plan, listed, flaws);
    }
    let planner = planner?;
    let tools = match (&planner, listed) {
        (_, Some(listed)) => listed,
        (Planner::Plan(plan, _), None) => tools_of(plan),
        (_, None) => Vec::new(),
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
                deadline_ms: Some(14 * 86_400_000),
                ..Limits::default()
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
                max_rounds: None,
                max_repeats: 5,
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
                "/planner: \"models\" is missing",
            ),
            (
                json!({ "planner": { "kind": "model", "models": [] } }),
                "/planner/models: a planner has 1 to 16 models",
            ),
            (
                json!({ "planner": { "kind": "model", "models": [{ "provider": "openai", "name": "m", "parameters": { "stream": true } }] } }),
                "/planner/models/0/parameters/stream: \"stream\" is the engine's to set",
            ),
            (
                json!({ "planner": { "kind": "model", "models": [{ "provider": "x", "name": "m" }] } }),
                "/planner/models/0/provider: ",
            ),
            (
                json!({ "planner": { "kind": "http", "url": "x" } }),
                "/planner/url: x: ",
            ),
            (
                json!({ "planner": { "kind": "magic" } }),
                "/planner/kind: this must be plan, model, http or external",
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
