//! Chat Completions of OpenAI, and of the many that are compatible with it, more or less.

use serde_json::{Map, Value};

use super::wire::{bearer, call, items, members, model_name, object, post, said, text, usage};
use super::{CallResult, Conversation, Finish, Message, ModelAnswer, RawCall, SentCall};
use crate::agent::Model;
use crate::json;
use crate::tool::{OutboundRequest, RequestError, Secrets};

pub(super) fn request(
    model: &Model,
    conversation: &Conversation,
    secrets: &Secrets<'_>,
) -> Result<OutboundRequest, RequestError> {
    let mut body = members([("model", model.name.as_str().into())]);
    body.extend(input(conversation, Form::OpenAi));
    if let Some(schema) = &conversation.output_schema {
        let named = object([
            ("name", "output".into()),
            ("schema", Value::clone(schema)),
            ("strict", false.into()),
        ]);
        let format = object([("type", "json_schema".into()), ("json_schema", named)]);
        body.insert("response_format".to_owned(), format);
    }
    let url = format!("{}/chat/completions", model.base_url);
    post(model, &url, &bearer(model), body, secrets)
}

/// Whose Chat Completions.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
    OpenAi,
    /// Older models of the platform refuse a content of null, and know a result by its tool's name.
    WorkersAi,
}

/// `messages`, `tools` and `stream`.
pub(super) fn input(conversation: &Conversation, form: Form) -> Map<String, Value> {
    let plain =
        |role: &str, content: &str| object([("role", role.into()), ("content", content.into())]);
    let mut messages = Vec::new();
    messages.extend(
        conversation
            .system
            .as_deref()
            .map(|system| plain("system", system)),
    );
    for message in &conversation.messages {
        match message {
            Message::User(text) => messages.push(plain("user", text)),
            // With neither, some providers refuse it.
            Message::Assistant {
                text: None, calls, ..
            } if calls.is_empty() => {}
            Message::Assistant { text, calls, .. } => {
                messages.push(assistant(text.as_deref(), calls, form));
            }
            Message::Results(results) => {
                messages.extend(results.iter().map(|result| tool_message(result, form)));
            }
        }
    }
    let mut input = members([("messages", Value::Array(messages))]);
    if !conversation.tools.is_empty() {
        let tools = conversation.tools.iter().map(|tool| {
            let function = object([
                ("name", tool.name.as_str().into()),
                ("description", tool.description.as_str().into()),
                ("parameters", Value::clone(&tool.parameters)),
            ]);
            object([("type", "function".into()), ("function", function)])
        });
        input.insert("tools".to_owned(), tools.collect());
    }
    input.insert("stream".to_owned(), false.into());
    input
}

fn assistant(text: Option<&str>, calls: &[SentCall], form: Form) -> Value {
    let content = match text {
        Some(text) => text.into(),
        None if form == Form::WorkersAi => "".into(),
        None => Value::Null,
    };
    let mut message = members([("role", "assistant".into()), ("content", content)]);
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| {
            let function = object([
                ("name", call.name.as_str().into()),
                ("arguments", json::write(&call.arguments).into()),
            ]);
            object([
                ("id", call.id.as_str().into()),
                ("type", "function".into()),
                ("function", function),
            ])
        });
        message.insert("tool_calls".to_owned(), calls.collect());
    }
    Value::Object(message)
}

fn tool_message(result: &CallResult, form: Form) -> Value {
    let mut message = members([
        ("role", "tool".into()),
        ("tool_call_id", result.id.as_str().into()),
        ("content", result.content.as_str().into()),
    ]);
    if form == Form::WorkersAi {
        message.insert("name".to_owned(), result.name.as_str().into());
    }
    Value::Object(message)
}

pub(super) fn parse(body: &Value) -> Result<ModelAnswer, String> {
    if text(body, "object") == Some("chat.completion.chunk") {
        return Err("it is a part of a stream, and none was asked for".to_owned());
    }
    let choice = body.get("choices").ok_or("it has no \"choices\"")?;
    let choice = choice.get(0).ok_or("its \"choices\" hold nothing")?;
    let message = choice.get("message").filter(|message| message.is_object());
    let message = message.ok_or("its first choice has no \"message\"")?;

    let finish = match text(choice, "finish_reason").unwrap_or_default() {
        "length" | "max_tokens" | "model_length" => Finish::Length,
        "content_filter" => Finish::Refused,
        "error" => return Err("its \"finish_reason\" is \"error\"".to_owned()),
        // Some say `stop` with calls or `tool_calls` without, so that it tells nothing of them.
        _ => Finish::Done,
    };
    let (content, refusal) = content(message)?;
    Ok(ModelAnswer {
        text: said(content).or_else(|| refusal.clone()),
        calls: calls(message)?,
        finish: if refusal.is_some() {
            Finish::Refused
        } else {
            finish
        },
        usage: usage(body, &["prompt_tokens"], &["completion_tokens"]),
        model: model_name(body),
    })
}

/// What was said, and what was said against saying it.
fn content(message: &Value) -> Result<(String, Option<String>), String> {
    let mut said = String::new();
    let mut refusal = text(message, "refusal").map(str::to_owned);
    match message.get("content") {
        None | Some(Value::Null) => {}
        Some(Value::String(content)) => said.push_str(content),
        Some(Value::Array(parts)) => {
            for part in parts {
                match text(part, "type").unwrap_or_default() {
                    "text" => said.push_str(text(part, "text").unwrap_or_default()),
                    "refusal" => refusal = text(part, "refusal").map(str::to_owned),
                    // What it thought is not what it said.
                    "thinking" | "reasoning" => {}
                    other => return Err(format!("a part of its content is {other:?}, not text")),
                }
            }
        }
        Some(_) => return Err("its content is neither text nor parts".to_owned()),
    }
    // An empty refusal is how some say that there is none.
    Ok((said, refusal.and_then(super::wire::said)))
}

fn calls(message: &Value) -> Result<Vec<RawCall>, String> {
    let listed = items(message, "tool_calls")?;
    let mut calls: Vec<RawCall> = listed.iter().map(tool_call).collect::<Result<_, _>>()?;
    // The form before there were several calls; some send it beside the new one.
    if calls.is_empty()
        && let Some(function) = message.get("function_call").filter(|call| call.is_object())
    {
        calls.push(call(None, function, "arguments"));
    }
    Ok(calls)
}

pub(super) fn tool_call(entry: &Value) -> Result<RawCall, String> {
    let id = text(entry, "id");
    let of = |member: &str| entry.get(member).filter(|inner| inner.is_object());
    if let Some(function) = of("function") {
        return Ok(call(id, function, "arguments"));
    }
    let custom = of("custom").map(|custom| call(id, custom, "input"));
    custom.ok_or_else(|| "one of its \"tool_calls\" holds no function".to_owned())
}

#[cfg(test)]
#[path = "openai_chat_tests.rs"]
mod tests;
