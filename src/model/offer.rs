//! What a model may call: the agent's tools, and what it may use of the engine itself.

use serde_json::json;

use crate::agent::{EngineTool, ModelPlanner};
use crate::json::{Json, Value};

use super::Offer;

/// The longest name that every provider takes.
const NAME_BYTES_MAX: usize = 64;
const FINISH: &str = "finish";

/// What a call of an offer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A tool, by the name under which the run pinned it.
    Tool(String),
    Engine(EngineTool),
    /// The run's end, with its output.
    Finish,
}

/// A tool as the run knows it: its name there, its description, the schema of its arguments.
type Known<'a> = (&'a str, &'a str, Option<&'a Value>);

/// All that the model may call, each under a name that providers take and no other offer has.
pub fn offered<'a>(
    planner: &ModelPlanner,
    tools: impl IntoIterator<Item = Known<'a>>,
) -> Vec<(Offer, Target)> {
    let mut offers: Vec<(Offer, Target)> = Vec::new();
    let engine = planner.engine_tools.iter().map(|tool| {
        let (description, parameters) = engine_tool(*tool, &planner.agents);
        (
            tool.as_str(),
            description,
            parameters,
            Target::Engine(*tool),
        )
    });
    let mut all: Vec<(&str, String, Value, Target)> = engine.collect();
    for (name, description, parameters) in tools {
        // A schema that says nothing of its type is of an object all the same: arguments are one.
        let mut parameters = match parameters {
            Some(Value::Object(members)) => members.clone(),
            _ => serde_json::Map::new(),
        };
        parameters
            .entry("type")
            .or_insert_with(|| Value::String("object".into()));
        if !parameters.contains_key("properties") {
            parameters.insert("properties".into(), json!({}));
        }
        all.push((
            name,
            description.to_owned(),
            Value::Object(parameters),
            Target::Tool(name.to_owned()),
        ));
    }
    if let Some(schema) = &planner.output_schema
        && !all.is_empty()
    {
        let description = "Ends the run with its output. Call it alone, when all is done.";
        let mut properties = serde_json::Map::new();
        properties.insert("output".into(), schema.clone());
        let mut parameters = serde_json::Map::new();
        parameters.insert("type".into(), "object".into());
        parameters.insert("properties".into(), Value::Object(properties));
        parameters.insert("required".into(), json!(["output"]));
        all.push((
            FINISH,
            description.to_owned(),
            Value::Object(parameters),
            Target::Finish,
        ));
    }
    for (name, description, parameters, target) in all {
        let name = unique(&allowed(name), &offers);
        let parameters = Json::new(parameters);
        offers.push((
            Offer {
                name,
                description,
                parameters,
            },
            target,
        ));
    }
    offers
}

/// `name@2` is offered as `name`; what no provider takes becomes `_`.
fn allowed(name: &str) -> String {
    let bare = name.split('@').next().unwrap_or(name);
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    bare.chars()
        .take(NAME_BYTES_MAX)
        .map(|c| if fits(c) { c } else { '_' })
        .collect()
}

fn unique(name: &str, offers: &[(Offer, Target)]) -> String {
    let taken = |name: &str| offers.iter().any(|(offer, _)| offer.name == name);
    if !taken(name) {
        return name.to_owned();
    }
    let numbered = (2_usize..).map(|number| {
        let suffix = format!("_{number}");
        let end = NAME_BYTES_MAX.saturating_sub(suffix.len());
        let stem: String = name.chars().take(end).collect();
        format!("{stem}{suffix}")
    });
    let mut numbered = numbered.filter(|name| !taken(name));
    numbered.next().unwrap_or_else(|| name.to_owned())
}

/// A name as the model gave it, in the form in which it can be shown to any provider again.
#[must_use]
pub fn shown_name(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let shown: String = name
        .chars()
        .take(NAME_BYTES_MAX)
        .map(|c| if fits(c) { c } else { '_' })
        .collect();
    if shown.is_empty() {
        "unnamed".to_owned()
    } else {
        shown
    }
}

fn engine_tool(tool: EngineTool, agents: &[String]) -> (String, Value) {
    let (description, parameters) = match tool {
        EngineTool::Sleep => (
            "Waits, for a duration or until a time, and goes on. Waiting costs nothing.",
            json!({
                "type": "object",
                "properties": {
                    "duration": { "type": "string", "description": "ISO 8601, such as PT30S, PT2H or P3D" },
                    "until": { "type": "string", "description": "RFC 3339 in UTC, such as 2026-12-24T18:00:00Z" }
                },
                "additionalProperties": false, "minProperties": 1, "maxProperties": 1
            }),
        ),
        EngineTool::WaitFor => (
            "Waits for the first of some signals from outside, and gives its payload.",
            json!({
                "type": "object",
                "properties": {
                    "signals": { "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 32 },
                    "timeout": { "type": "string", "description": "ISO 8601, such as PT30S, PT2H or P3D; without one, for ever" }
                },
                "required": ["signals"], "additionalProperties": false
            }),
        ),
        EngineTool::AskPerson => (
            "Asks a person, who approves or rejects and may give data, and waits for the answer.",
            json!({
                "type": "object",
                "properties": {
                    "prompt": { "type": "string", "minLength": 1 },
                    "schema": { "type": "object", "description": "The JSON Schema of the data that is asked for" },
                    "timeout": { "type": "string", "description": "ISO 8601, such as PT2H or P3D; without one, for ever" }
                },
                "required": ["prompt"], "additionalProperties": false
            }),
        ),
        EngineTool::StartRun => {
            let mut agent = json!({ "type": "string" });
            if let (false, Some(members)) = (agents.is_empty(), agent.as_object_mut()) {
                members.insert("enum".into(), agents.iter().cloned().collect());
            }
            (
                "Starts a run of another agent, waits for its end, and gives its output.",
                json!({
                    "type": "object",
                    "properties": { "agent": agent, "input": {} },
                    "required": ["agent"], "additionalProperties": false
                }),
            )
        }
        EngineTool::Emit => (
            "Tells the world of an event, for whoever subscribed to its type.",
            json!({
                "type": "object",
                "properties": {
                    "type": { "type": "string", "minLength": 1, "maxLength": 256 },
                    "data": {}
                },
                "required": ["type"], "additionalProperties": false
            }),
        ),
    };
    (description.to_owned(), parameters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, Planner};

    fn planner(more: &str) -> Box<ModelPlanner> {
        let text = format!(
            r#"{{"planner":{{"kind":"model","models":[{{"provider":"openai","name":"m"}}]{more}}}}}"#
        );
        let agent = Agent::parse(&serde_json::from_str(&text).unwrap()).unwrap();
        match agent.planner {
            Planner::Model(planner) => planner,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_are_what_providers_take_and_unique() {
        let planner = planner(r#","engine_tools":["sleep"],"output_schema":{"type":"object"}"#);
        let long = "x".repeat(64);
        let tools = ["a.b", "a_b@2", "sleep", &long, "finish"];
        let offers = offered(&planner, tools.iter().map(|name| (*name, "", None)));
        let names: Vec<&str> = offers
            .iter()
            .map(|(offer, _)| offer.name.as_str())
            .collect();
        assert_eq!(
            names,
            [
                "sleep", "a_b", "a_b_2", "sleep_2", &long, "finish", "finish_2"
            ]
        );
        assert_eq!(offers[0].1, Target::Engine(EngineTool::Sleep));
        assert_eq!(offers[2].1, Target::Tool("a_b@2".into()));
        assert_eq!(offers[6].1, Target::Finish);
    }

    #[test]
    fn a_model_with_nothing_to_call_has_nothing_to_finish_with() {
        let planner = planner(r#","output_schema":{"type":"object"}"#);
        assert!(offered(&planner, []).is_empty());
    }

    #[test]
    fn the_agents_it_may_start_are_in_the_schema() {
        let planner = planner(r#","engine_tools":["start_run"],"agents":["buyer"]"#);
        let (offer, _) = &offered(&planner, [])[0];
        assert_eq!(
            offer.parameters.pointer("/properties/agent/enum"),
            Some(&json!(["buyer"]))
        );
    }

    #[test]
    fn a_name_that_no_provider_takes_is_shown_in_one_that_all_take() {
        assert_eq!(shown_name("../pay "), "___pay_");
        assert_eq!(shown_name(""), "unnamed");
        assert_eq!(shown_name(&"é".repeat(99)), "_".repeat(64));
    }
}
