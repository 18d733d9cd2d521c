//! Responses of OpenAI. Nothing is kept there: the whole conversation is sent each time, with the
//! model's reasoning, which only the provider can read.

use serde_json::{Map, Value};

use super::wire::{bearer, call, members, model_name, object, post, said, text, usage};
use super::{Conversation, Finish, Message, ModelAnswer, Replay, SentCall};
use crate::agent::Model;
use crate::json;
use crate::tool::{OutboundRequest, RequestError, Secrets};

pub(super) fn request(
    model: &Model,
    conversation: &Conversation,
    secrets: &Secrets<'_>,
) -> Result<OutboundRequest, RequestError> {
    let mut body = members([("model", model.name.as_str().into())]);
    if let Some(system) = &conversation.system {
        body.insert("instructions".to_owned(), system.as_str().into());
    }
    body.insert("input".to_owned(), Value::Array(input(model, conversation)));
    if !conversation.tools.is_empty() {
        let tools = conversation.tools.iter().map(|tool| {
            object([
                ("type", "function".into()),
                ("name", tool.name.as_str().into()),
                ("description", tool.description.as_str().into()),
                ("parameters", Value::clone(&tool.parameters)),
                // Left out it means true, which rewrites the schema.
                ("strict", false.into()),
            ])
        });
        body.insert("tools".to_owned(), tools.collect());
    }
    if let Some(schema) = &conversation.output_schema {
        let format = object([
            ("type", "json_schema".into()),
            ("name", "output".into()),
            ("schema", Value::clone(schema)),
            ("strict", false.into()),
        ]);
        body.insert("text".to_owned(), object([("format", format)]));
    }
    body.insert("store".to_owned(), false.into());
    let include = Value::Array(vec!["reasoning.encrypted_content".into()]);
    body.insert("include".to_owned(), include);
    body.insert("stream".to_owned(), false.into());
    let url = format!("{}/responses", model.base_url);
    post(model, &url, &bearer(model), body, secrets)
}

fn input(model: &Model, conversation: &Conversation) -> Vec<Value> {
    let mut input = Vec::new();
    for message in &conversation.messages {
        match message {
            Message::User(text) => input.push(said_by("user", text)),
            Message::Assistant {
                text,
                calls,
                replay,
            } => {
                let replayed = replay
                    .as_ref()
                    .filter(|replay| replay.is_of(model))
                    .and_then(|replay| replayed(replay, calls));
                input.extend(replayed.unwrap_or_else(|| {
                    let text = text.iter().map(|text| said_by("assistant", text));
                    text.chain(calls.iter().map(|call| Value::Object(function_call(call))))
                        .collect()
                }));
            }
            Message::Results(results) => input.extend(results.iter().map(|result| {
                object([
                    ("type", "function_call_output".into()),
                    ("call_id", result.id.as_str().into()),
                    ("output", result.content.as_str().into()),
                ])
            })),
        }
    }
    input
}

fn said_by(role: &str, text: &str) -> Value {
    object([
        ("type", "message".into()),
        ("role", role.into()),
        ("content", text.into()),
    ])
}

fn function_call(call: &SentCall) -> Map<String, Value> {
    members([
        ("type", "function_call".into()),
        ("call_id", call.id.as_str().into()),
        ("name", call.name.as_str().into()),
        ("arguments", json::write(&call.arguments).into()),
    ])
}

/// The items as they were, but for what the calls are called now; `None` where they do not fit the
/// calls.
fn replayed(replay: &Replay, calls: &[SentCall]) -> Option<Vec<Value>> {
    let mut calls = calls.iter();
    let mut items = Vec::new();
    for item in replay.answer.get("output")?.as_array()? {
        items.push(match text(item, "type") {
            Some("function_call") => {
                // Its own id ties it to the reasoning before it.
                let mut members = item.as_object()?.clone();
                members.extend(function_call(calls.next()?));
                Value::Object(members)
            }
            Some("custom_tool_call") => Value::Object(function_call(calls.next()?)),
            _ => item.clone(),
        });
    }
    calls.next().is_none().then_some(items)
}

pub(super) fn parse(body: &Value) -> Result<ModelAnswer, String> {
    let output = body.get("output").and_then(Value::as_array);
    let output = output.ok_or("it has no \"output\"")?;
    let reason = body.get("incomplete_details");
    let reason = reason.and_then(|details| text(details, "reason"));
    let mut finish = match text(body, "status").unwrap_or("completed") {
        "completed" => Finish::Done,
        "incomplete" => match reason.unwrap_or_default() {
            "max_output_tokens" => Finish::Length,
            "content_filter" => Finish::Refused,
            other => {
                return Err(format!(
                    "it is incomplete for a reason ({other:?}) not known"
                ));
            }
        },
        other => return Err(format!("its \"status\" is {other:?}, not \"completed\"")),
    };
    let mut spoken = String::new();
    let mut refusal = String::new();
    let mut calls = Vec::new();
    for item in output {
        match text(item, "type").unwrap_or_default() {
            "message" => {
                for part in super::wire::items(item, "content")? {
                    match text(part, "type").unwrap_or_default() {
                        "output_text" => spoken.push_str(text(part, "text").unwrap_or_default()),
                        "refusal" => {
                            finish = Finish::Refused;
                            refusal.push_str(text(part, "refusal").unwrap_or_default());
                        }
                        other => {
                            return Err(format!("a part of its message is {other:?}, not text"));
                        }
                    }
                }
            }
            "function_call" => calls.push(call(text(item, "call_id"), item, "arguments")),
            "custom_tool_call" => calls.push(call(text(item, "call_id"), item, "input")),
            // Its reasoning, and what the provider's own tools did.
            _ => {}
        }
    }
    Ok(ModelAnswer {
        text: said(spoken).or_else(|| said(refusal)),
        calls,
        finish,
        usage: usage(body, &["input_tokens"], &["output_tokens"]),
        model: model_name(body),
    })
}

#[cfg(test)]
#[path = "openai_responses_tests.rs"]
mod tests;
