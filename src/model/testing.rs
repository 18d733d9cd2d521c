//! What the tests of the wire forms share.

use serde_json::{Map, Value};

use super::{CallResult, Conversation, Message, Offer, Replay, SentCall};
use super::{RawArguments, RawCall};
use crate::agent::{Model, Provider};
use crate::json::{self, Json};
use crate::tool::OutboundRequest;

/// Numbers that a double, or a way through serde, would change.
pub const EXACT: &str = r#"{"id":18446744073709551616,"e":1E5,"f":1.0}"#;

pub fn value(text: &str) -> Value {
    json::read(text.as_bytes()).unwrap()
}

pub fn exact(text: &str) -> Json {
    Json::new(value(text))
}

/// The same JSON in its compact form, to compare a body with to the last character.
pub fn compact(text: &str) -> String {
    json::write(&value(text))
}

pub fn model(provider: Provider) -> Model {
    Model {
        provider,
        name: "m-1".to_owned(),
        base_url: "https://models.example/v1".to_owned(),
        api_key: Some("{{ secrets.KEY }}".to_owned()),
        headers: Vec::new(),
        version: None,
        parameters: Map::new(),
        timeout_ms: 7_000,
        context_tokens: 100_000,
    }
}

pub fn with_parameters(provider: Provider, parameters: &str) -> Model {
    Model {
        parameters: value(parameters).as_object().unwrap().clone(),
        ..model(provider)
    }
}

pub fn secret(name: &str) -> Option<String> {
    (name == "KEY").then(|| "s3cr3t-key".to_owned())
}

pub fn user(text: &str) -> Message {
    Message::User(text.to_owned())
}

pub fn sent(id: &str, arguments: &str) -> SentCall {
    SentCall {
        id: id.to_owned(),
        name: "look_up".to_owned(),
        arguments: exact(arguments),
    }
}

pub fn answered(text: Option<&str>, calls: Vec<SentCall>) -> Message {
    Message::Assistant {
        text: text.map(str::to_owned),
        calls,
        replay: None,
    }
}

pub fn answered_with(provider: Provider, answer: &str, calls: Vec<SentCall>) -> Message {
    Message::Assistant {
        text: Some("from the normal form".to_owned()),
        calls,
        replay: Some(Replay {
            provider,
            model: "m-1".to_owned(),
            answer: exact(answer),
        }),
    }
}

pub fn result(id: &str, content: &str, is_error: bool) -> CallResult {
    CallResult {
        id: id.to_owned(),
        name: "look_up".to_owned(),
        content: content.to_owned(),
        is_error,
    }
}

/// Two calls at once, one of which failed, and what the user said then.
pub fn conversation() -> Conversation {
    Conversation {
        system: Some("Be brief.".to_owned()),
        messages: vec![
            user("Find both."),
            answered(None, vec![sent("c1", EXACT), sent("c2", "{}")]),
            Message::Results(vec![
                result("c1", r#"{"n":9007199254740993}"#, false),
                result("c2", "no such thing", true),
            ]),
            answered(Some("One is missing."), vec![]),
            user("Go on."),
        ],
        tools: vec![Offer {
            name: "look_up".to_owned(),
            description: "Finds a thing.".to_owned(),
            parameters: exact(r#"{"type":"object","properties":{"id":{"maximum":1E30}}}"#),
        }],
        output_schema: None,
    }
}

pub fn saying(messages: Vec<Message>) -> Conversation {
    Conversation {
        messages,
        ..Conversation::default()
    }
}

/// With a schema for the text, and nothing to call.
pub fn structured() -> Conversation {
    Conversation {
        output_schema: Some(exact(r#"{"type":"object","maxProperties":1E1}"#)),
        ..saying(vec![user("Hi")])
    }
}

pub fn body(request: &OutboundRequest) -> Value {
    value(request.body.as_deref().unwrap())
}

pub fn header<'r>(request: &'r OutboundRequest, name: &str) -> Option<&'r str> {
    let mut headers = request.headers.iter();
    headers
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.as_str())
}

pub fn raw(id: Option<&str>, name: &str, arguments: RawArguments) -> RawCall {
    RawCall {
        id: id.map(str::to_owned),
        name: name.to_owned(),
        arguments,
    }
}

pub fn as_text(text: &str) -> RawArguments {
    RawArguments::Text(text.to_owned())
}
