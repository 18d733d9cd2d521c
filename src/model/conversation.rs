//! What a model is asked with.

use serde::{Deserialize, Serialize};

use crate::agent::{Model, Provider};
use crate::json::Json;

/// One request to a model, in the form that the core knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conversation {
    /// What it is told before anything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Oldest first. Each `Assistant` with calls is followed by the `Results` of all of them.
    pub messages: Vec<Message>,
    /// What it may call.
    pub tools: Vec<Offer>,
    /// The JSON Schema that its text must fit, where it has nothing to call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Json>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    User(String),
    Assistant {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<SentCall>,
        /// What its own provider wants to see again as it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replay: Option<Replay>,
    },
    /// One for each call of the message before, in its order.
    Results(Vec<CallResult>),
}

/// A call as it is shown to the model again. Its id is unique in the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SentCall {
    pub id: String,
    /// As the model named it, bounded, and in the provider's alphabet.
    pub name: String,
    /// Always an object.
    pub arguments: Json,
}

/// The provider's answer of that round, of which only a request to the same model makes use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    pub provider: Provider,
    /// As the agent names it: another model may refuse what this one thought.
    pub model: String,
    pub answer: Json,
}

impl Replay {
    /// Whether that model said it. What one model thought is refused by others.
    pub(super) fn is_of(&self, model: &Model) -> bool {
        self.provider == model.provider && self.model == model.name
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallResult {
    pub id: String,
    pub name: String,
    pub content: String,
    pub is_error: bool,
}

/// A tool as it is offered to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// `[a-zA-Z0-9_-]{1,64}`, unique.
    pub name: String,
    pub description: String,
    /// A JSON Schema of type object.
    pub parameters: Json,
}
