//! Keys of models that stand in a definition as they are: they are kept there, and nowhere else.

use crate::json::{Json, Value};
use crate::tool::is_plain_text;

/// How a run's own copy of the definition names the key of a model.
const NAME: &str = "_agent_key.";
const HIDDEN: &str = "[hidden]";

/// The definition as a run pins it: a key that stands in it as it is, is named instead.
#[must_use]
pub fn without_keys(definition: &Json) -> Json {
    replaced(definition, |place| {
        format!("{{{{ secrets.{NAME}{place} }}}}")
    })
}

/// The definition as it is shown.
#[must_use]
pub fn with_keys_hidden(definition: &Json) -> Json {
    replaced(definition, |_| HIDDEN.to_owned())
}

/// Whether a run's copy needs the keys of the definition it was made of.
#[must_use]
pub fn names_keys(definition: &Value) -> bool {
    keys(definition).any(|key| key.contains(NAME))
}

/// The key that a run's copy names, out of the definition it was made of.
#[must_use]
pub fn key(definition: &Value, name: &str) -> Option<String> {
    let place: usize = name.strip_prefix(NAME)?.parse().ok()?;
    let key = models(definition)?.get(place)?.get("api_key")?;
    key.as_str().map(str::to_owned)
}

fn models(definition: &Value) -> Option<&Vec<Value>> {
    definition.get("planner")?.get("models")?.as_array()
}

fn keys(definition: &Value) -> impl Iterator<Item = &str> {
    let models = models(definition).into_iter().flatten();
    models.filter_map(|model| model.get("api_key")?.as_str())
}

fn replaced(definition: &Json, put: impl Fn(usize) -> String) -> Json {
    if !keys(definition).any(is_plain_text) {
        return definition.clone();
    }
    let mut definition = Value::clone(definition);
    let models = definition
        .get_mut("planner")
        .and_then(|planner| planner.get_mut("models"))
        .and_then(Value::as_array_mut);
    for (place, model) in models.into_iter().flatten().enumerate() {
        if let Some(Value::String(key)) = model.get_mut("api_key")
            && is_plain_text(key)
        {
            *key = put(place);
        }
    }
    Json::new(definition)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_key_that_stands_there_is_named_and_found_again() {
        let definition = Json::new(json!({ "planner": { "models": [
            { "api_key": "{{ secrets.A }}" }, { "api_key": "sk-1" }, { "name": "none" }
        ] } }));
        let pinned = without_keys(&definition);
        assert!(!pinned.to_string().contains("sk-1"));
        assert!(names_keys(&pinned) && !names_keys(&definition));
        let name = pinned["planner"]["models"][1]["api_key"].as_str().unwrap();
        assert_eq!(name, "{{ secrets._agent_key.1 }}");
        assert_eq!(key(&definition, "_agent_key.1").as_deref(), Some("sk-1"));
        assert_eq!(key(&definition, "_agent_key.9"), None);
        assert_eq!(
            with_keys_hidden(&definition)["planner"]["models"][1]["api_key"],
            "[hidden]"
        );
        let plan = Json::new(json!({ "planner": { "kind": "plan" } }));
        assert_eq!(without_keys(&plan), plan);
    }
}
