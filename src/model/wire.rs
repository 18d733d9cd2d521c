//! What the wire forms share. Values from outside are put into a body as they are: on a way through
//! serde (`json!`) their numbers would be spelled anew.

use serde_json::{Map, Value};

use super::{RawArguments, RawCall, Usage};
use crate::agent::Model;
use crate::json::{self, Json};
use crate::tool::{HttpTarget, Method, OutboundRequest, RequestError, Secrets};

/// Members of a body that hold several settings, so that one of them does not displace the rest.
const MERGED: [&str; 2] = ["text", "output_config"];

pub(super) fn members<const N: usize>(members: [(&str, Value); N]) -> Map<String, Value> {
    let named = members.into_iter();
    named
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

pub(super) fn object<const N: usize>(of: [(&str, Value); N]) -> Value {
    Value::Object(members(of))
}

/// The definition's own parameters, over what stands in the body.
pub(super) fn add_parameters(body: &mut Map<String, Value>, model: &Model) {
    for (name, value) in &model.parameters {
        match (body.get_mut(name), value) {
            (Some(Value::Object(ours)), Value::Object(given))
                if MERGED.contains(&name.as_str()) =>
            {
                let given = given.iter();
                ours.extend(given.map(|(name, value)| (name.clone(), value.clone())));
            }
            _ => {
                body.insert(name.clone(), value.clone());
            }
        }
    }
}

pub(super) fn post(
    model: &Model,
    url: &str,
    headers: &[(&str, String)],
    mut body: Map<String, Value>,
    secrets: &Secrets<'_>,
) -> Result<OutboundRequest, RequestError> {
    let target = HttpTarget::of(Method::Post, url, &model.headers)
        .map_err(|message| RequestError::BadUrl { message })?;
    add_parameters(&mut body, model);
    let body = json::write(&Value::Object(body));
    OutboundRequest::post(&target, headers, None, body, model.timeout_ms, secrets)
}

pub(super) fn bearer(model: &Model) -> Vec<(&'static str, String)> {
    let key = model.api_key.iter();
    key.map(|key| ("authorization", format!("Bearer {key}")))
        .collect()
}

/// The text of a member, where it is one.
pub(super) fn text<'v>(value: &'v Value, member: &str) -> Option<&'v str> {
    value.get(member).and_then(Value::as_str)
}

/// The items of a member that may be missing or null.
pub(super) fn items<'v>(value: &'v Value, member: &str) -> Result<&'v [Value], String> {
    match value.get(member) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(format!("its {member:?} is not an array")),
    }
}

/// What was said, unless that is nothing but white space.
pub(super) fn said(text: String) -> Option<String> {
    (!text.trim().is_empty()).then_some(text)
}

/// A call out of the object that holds its name and its arguments. A name that is missing is the
/// empty one, which no tool has, so that the model is told and the calls beside it go on.
pub(super) fn call(id: Option<&str>, function: &Value, arguments: &str) -> RawCall {
    RawCall {
        id: id.map(str::to_owned),
        name: text(function, "name").unwrap_or_default().to_owned(),
        arguments: match function.get(arguments) {
            None | Some(Value::Null) => RawArguments::Absent,
            Some(Value::String(text)) => RawArguments::Text(text.clone()),
            Some(value) => RawArguments::Value(Json::new(value.clone())),
        },
    }
}

/// The tokens, each the sum of its members; `None` where not one of them is a count.
pub(super) fn usage(body: &Value, input: &[&str], output: &[&str]) -> Option<Usage> {
    let usage = body.get("usage")?;
    let sum = |members: &[&str]| {
        let counts = members.iter().filter_map(|name| usage.get(name)?.as_u64());
        counts.reduce(u64::saturating_add)
    };
    let (input, output) = (sum(input), sum(output));
    (input.is_some() || output.is_some()).then(|| Usage {
        input_tokens: input.unwrap_or_default(),
        output_tokens: output.unwrap_or_default(),
    })
}

pub(super) fn model_name(body: &Value) -> Option<String> {
    text(body, "model").map(str::to_owned)
}
