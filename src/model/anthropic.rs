//! Messages of Anthropic.

use serde_json::{Map, Value};

use super::wire::{call, items, members, model_name, object, post, said, text, usage};
use super::{CallResult, Conversation, Finish, Message, ModelAnswer, Replay, SentCall};
use crate::agent::Model;
use crate::tool::{OutboundRequest, RequestError, Secrets};

const VERSION: &str = "2026-10-21";
/// The API wants a number, and every model can do this one.
const MAX_TOKENS: u64 = 4096;
/// The first leaves out what was cached.
const INPUT: [&str; 3] = [
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
];

pub(super) fn request(
    model: &Model,
    conversation: &Conversation,
    secrets: &Secrets<'_>,
) -> Result<OutboundRequest, RequestError> {
    let mut body = members([
        ("model", model.name.as_str().into()),
        ("max_tokens", MAX_TOKENS.into()),
    ]);
    if let Some(system) = &conversation.system {
        body.insert("system".to_owned(), system.as_str().into());
    }
    body.insert("messages".to_owned(), messages(model, conversation));
    if !conversation.tools.is_empty() {
        let tools = conversation.tools.iter().map(|tool| {
            object([
                ("name", tool.name.as_str().into()),
                ("description", tool.description.as_str().into()),
                ("input_schema", Value::clone(&tool.parameters)),
            ])
        });
        body.insert("tools".to_owned(), tools.collect());
    }
    if let Some(schema) = &conversation.output_schema {
        let format = object([
            ("type", "json_schema".into()),
            ("schema", Value::clone(schema)),
        ]);
        body.insert("output_config".to_owned(), object([("format", format)]));
    }
    body.insert("stream".to_owned(), false.into());

    let base = model.base_url.as_str();
    let base = base.strip_suffix("/v1").unwrap_or(base);
    let version = model.version.as_deref().unwrap_or(VERSION);
    let mut headers = vec![("anthropic-version", version.to_owned())];
    headers.extend(model.api_key.iter().map(|key| ("x-api-key", key.clone())));
    post(
        model,
        &format!("{base}/v1/messages"),
        &headers,
        body,
        secrets,
    )
}

/// Roles alternate: what follows in the same role goes into the same message, and a message that
/// would be empty is left out.
fn messages(model: &Model, conversation: &Conversation) -> Value {
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in &conversation.messages {
        let (role, blocks) = match message {
            Message::User(text) => ("user", vec![text_block(text)]),
            Message::Results(results) => ("user", results.iter().map(tool_result).collect()),
            Message::Assistant {
                text,
                calls,
                replay,
            } => {
                let replayed = replay
                    .as_ref()
                    .filter(|replay| replay.is_of(model))
                    .and_then(|replay| replayed(replay, calls));
                let blocks = replayed.unwrap_or_else(|| {
                    let text = text.iter().map(|text| text_block(text));
                    text.chain(calls.iter().map(tool_use)).collect()
                });
                ("assistant", blocks)
            }
        };
        match messages.last_mut() {
            _ if blocks.is_empty() => {}
            Some((last, before)) if *last == role => before.extend(blocks),
            _ => messages.push((role, blocks)),
        }
    }
    let messages = messages
        .into_iter()
        .map(|(role, blocks)| object([("role", role.into()), ("content", Value::Array(blocks))]));
    messages.collect()
}

fn text_block(text: &str) -> Value {
    object([("type", "text".into()), ("text", text.into())])
}

fn tool_use(call: &SentCall) -> Value {
    object([
        ("type", "tool_use".into()),
        ("id", call.id.as_str().into()),
        ("name", call.name.as_str().into()),
        ("input", Value::clone(&call.arguments)),
    ])
}

fn tool_result(result: &CallResult) -> Value {
    let mut block: Map<String, Value> = members([
        ("type", "tool_result".into()),
        ("tool_use_id", result.id.as_str().into()),
        ("content", result.content.as_str().into()),
    ]);
    if result.is_error {
        block.insert("is_error".to_owned(), true.into());
    }
    Value::Object(block)
}

/// The blocks as they were, thinking above all, but for what the calls are called now; `None` where
/// they do not fit the calls.
fn replayed(replay: &Replay, calls: &[SentCall]) -> Option<Vec<Value>> {
    let mut calls = calls.iter();
    let mut blocks = Vec::new();
    for block in replay.answer.get("content")?.as_array()? {
        match text(block, "type") {
            Some("tool_use") => blocks.push(tool_use(calls.next()?)),
            // It writes such blocks, and refuses them.
            Some("text") if text(block, "text").is_none_or(|text| text.trim().is_empty()) => {}
            _ => blocks.push(block.clone()),
        }
    }
    calls.next().is_none().then_some(blocks)
}

pub(super) fn parse(body: &Value) -> Result<ModelAnswer, String> {
    if !body.get("content").is_some_and(Value::is_array) {
        return Err("it has no \"content\" of blocks".to_owned());
    }
    let finish = match text(body, "stop_reason").unwrap_or_default() {
        "max_tokens" => Finish::Length,
        "pause_turn" => Finish::Paused,
        "refusal" => Finish::Refused,
        "model_context_window_exceeded" => Finish::ContextFull,
        // New ones come; what was said and called tells what they mean.
        _ => Finish::Done,
    };
    let mut spoken = String::new();
    let mut calls = Vec::new();
    for block in items(body, "content")? {
        match text(block, "type").unwrap_or_default() {
            "text" => spoken.push_str(text(block, "text").unwrap_or_default()),
            "tool_use" => calls.push(call(text(block, "id"), block, "input")),
            // Its thinking, and what the provider's own tools did.
            _ => {}
        }
    }
    Ok(ModelAnswer {
        text: said(spoken),
        calls,
        finish,
        usage: usage(body, &INPUT, &["output_tokens"]),
        model: model_name(body),
    })
}

#[cfg(test)]
#[path = "anthropic_tests.rs"]
mod tests;
