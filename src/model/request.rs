//! One request to one model, and what its answer says.

use crate::agent::{Model, Provider};
use crate::json::{self, Json};
use crate::tool::{Answer, OutboundRequest, RequestError, Secrets};
use crate::words::Timestamp;

use super::judge::Teller;
use super::{Conversation, ModelAnswer, ModelFault};
use super::{anthropic, mend, openai_chat, openai_responses, workers_ai};

/// A request as it is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Outgoing {
    Http(OutboundRequest),
    /// To the platform's own models: `AI.run(model, input)`.
    Binding {
        model: String,
        /// JSON text.
        input: String,
        timeout_ms: i64,
    },
}

/// The request that asks `model` with `conversation`. Nothing is streamed.
///
/// # Errors
/// A secret that is missing or unusable, or a URL that is unusable once it is filled in.
pub fn request(
    model: &Model,
    conversation: &Conversation,
    secrets: &Secrets<'_>,
) -> Result<Outgoing, RequestError> {
    match model.provider {
        Provider::Openai => openai_chat::request(model, conversation, secrets).map(Outgoing::Http),
        Provider::OpenaiResponses => {
            openai_responses::request(model, conversation, secrets).map(Outgoing::Http)
        }
        Provider::Anthropic => anthropic::request(model, conversation, secrets).map(Outgoing::Http),
        Provider::WorkersAi => Ok(workers_ai::request(model, conversation)),
    }
}

/// What came back: the answer in its normal form and as the provider gave it, or why there is none.
/// `mask` takes secrets out of what is quoted.
///
/// # Errors
/// Why there is no answer.
pub fn read(
    model: &Model,
    answer: &Answer,
    mask: &dyn Fn(&str) -> String,
    now: Timestamp,
) -> Result<(ModelAnswer, Json), Box<ModelFault>> {
    let teller = Teller { model, mask, now };
    let reply = match answer {
        Answer::Reply(reply) => reply,
        Answer::Transport(transport) => return Err(teller.transport(transport)),
    };
    if !(200..=299).contains(&reply.status) {
        return Err(teller.reply(reply));
    }
    // What is kept will stand in frames, so it has the depth of an outside value.
    let (body, mended) = match json::read(&reply.body) {
        Ok(body) => (Json::new(body), false),
        Err(flaws) => match mend::read(&reply.body) {
            Some(body) => (body, true),
            None => return Err(teller.not_json(reply, &flaws)),
        },
    };
    if body.get("error").is_some_and(|error| !error.is_null()) {
        return Err(teller.error_within(reply, &body));
    }
    let parsed = match model.provider {
        Provider::Openai => openai_chat::parse(&body),
        Provider::OpenaiResponses => openai_responses::parse(&body),
        Provider::Anthropic => anthropic::parse(&body),
        Provider::WorkersAi => workers_ai::parse(&body),
    };
    match parsed {
        Ok(mut parsed) => {
            if mended {
                mend::spoil(&mut parsed);
            }
            Ok((parsed, body))
        }
        Err(why) => Err(teller.other_form(reply, &why)),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
