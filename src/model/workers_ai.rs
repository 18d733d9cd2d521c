//! The platform's own models. Newer ones speak Chat Completions; older ones answer
//! `{ response, tool_calls, usage }`, without ids.

use serde_json::Value;

use super::openai_chat::{self, Form};
use super::wire::{add_parameters, call, items, model_name, object, said, text, usage};
use super::{Conversation, Finish, ModelAnswer, Outgoing};
use crate::agent::Model;
use crate::json;

pub(super) fn request(model: &Model, conversation: &Conversation) -> Outgoing {
    let mut input = openai_chat::input(conversation, Form::WorkersAi);
    if let Some(schema) = &conversation.output_schema {
        let format = object([
            ("type", "json_schema".into()),
            // Here the schema stands without the frame that OpenAI puts around it.
            ("json_schema", Value::clone(schema)),
        ]);
        input.insert("response_format".to_owned(), format);
    }
    add_parameters(&mut input, model);
    Outgoing::Binding {
        model: model.name.clone(),
        input: json::write(&Value::Object(input)),
        timeout_ms: model.timeout_ms,
    }
}

pub(super) fn parse(body: &Value) -> Result<ModelAnswer, String> {
    if body.get("choices").is_some() || body.get("object").is_some() {
        return openai_chat::parse(body);
    }
    if body.get("response").is_none() && body.get("tool_calls").is_none() {
        return Err("it has neither a \"response\" nor \"choices\"".to_owned());
    }
    let response = match body.get("response") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        // Structured output comes as the value itself.
        Some(value) => json::write(value),
    };
    let calls = items(body, "tool_calls")?.iter().map(|entry| {
        if entry.get("function").is_some() {
            return openai_chat::tool_call(entry);
        }
        if !entry.is_object() {
            return Err("one of its \"tool_calls\" is not an object".to_owned());
        }
        Ok(call(text(entry, "id"), entry, "arguments"))
    });
    Ok(ModelAnswer {
        text: said(response),
        calls: calls.collect::<Result<_, _>>()?,
        finish: Finish::Done,
        usage: usage(body, &["prompt_tokens"], &["completion_tokens"]),
        model: model_name(body),
    })
}

#[cfg(test)]
#[path = "workers_ai_tests.rs"]
mod tests;
