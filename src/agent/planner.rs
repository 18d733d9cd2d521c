//! Who decides: a fixed plan, a model, a service, or nobody whom this engine calls.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Planner;
use crate::fields::{Fields, Flaws, shorten};
use crate::json::pointer;
use crate::plan::{Plan, parse_versioned_name};
use crate::retry::RetryPolicy;
use crate::tool::{HttpTarget, Method, check_header_template, read_retry};
use crate::words::DurationMs;
use crate::words::limits::TOOL_TIMEOUT_MAX;

const TIMEOUT_MS_DEFAULT: i64 = 120_000;
const REPAIR_ATTEMPTS_DEFAULT: u32 = 2;
const REPAIR_ATTEMPTS_MAX: u64 = 20;
const MODELS_MAX: usize = 16;
/// Below the window of every model in wide use.
const CONTEXT_TOKENS_DEFAULT: u64 = 100_000;
const CONTEXT_TOKENS_MAX: u64 = 100_000_000;
/// What the engine itself puts into a request.
const RESERVED_PARAMETERS: [&str; 9] = [
    "model",
    "messages",
    "input",
    "instructions",
    "system",
    "tools",
    "stream",
    "n",
    "previous_response_id",
];

/// Who is asked for a run's next intents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mind<'a> {
    Model(&'a ModelPlanner),
    Http(&'a HttpPlanner),
}

/// A language model decides.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelPlanner {
    /// What it is told before anything else.
    pub system: Option<String>,
    /// The JSON Schema of a run's output; without one the output is the model's last text.
    pub output_schema: Option<Value>,
    /// Rounds in a row in which the model may mend what was malformed, before a person is asked.
    pub repair_attempts: u32,
    /// What of the engine itself it may use.
    pub engine_tools: Vec<EngineTool>,
    /// The agents that it may start, `name` or `name@version`; empty means any.
    pub agents: Vec<String>,
    /// In the order in which they are tried; at least one.
    pub models: Vec<Model>,
    /// How often and when a round is asked for again.
    pub retry: RetryPolicy,
}

/// What a planner may want of the engine itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EngineTool {
    Sleep,
    WaitFor,
    AskPerson,
    StartRun,
    Emit,
}

/// One model, and how it is reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub provider: Provider,
    /// As the provider knows it.
    pub name: String,
    /// Where the provider is, without a slash at its end. Unused by a binding.
    pub base_url: String,
    /// May hold `{{ secrets.NAME }}`.
    pub api_key: Option<String>,
    /// Further headers of each request; values may hold `{{ secrets.NAME }}`.
    pub headers: Vec<(String, String)>,
    /// Of the provider's API, where that has versions.
    pub version: Option<String>,
    /// Further members of each request, such as `max_completion_tokens`.
    pub parameters: Map<String, Value>,
    pub timeout_ms: i64,
    /// Tokens of the conversation from which on it is compacted.
    pub context_tokens: u64,
}

/// Whose wire form a model speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// Chat Completions of OpenAI, and whatever is compatible.
    Openai,
    /// Responses of OpenAI.
    OpenaiResponses,
    /// Messages of Anthropic.
    Anthropic,
    /// The platform's own, by binding.
    WorkersAi,
}

/// A service decides.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpPlanner {
    /// A POST; the headers may hold `{{ secrets.NAME }}`.
    pub target: HttpTarget,
    pub timeout_ms: i64,
    /// Signs each request as Standard Webhooks; may hold `{{ secrets.NAME }}`.
    pub signing_secret: Option<String>,
    pub repair_attempts: u32,
    pub retry: RetryPolicy,
}

impl Provider {
    pub const ALL: [Self; 4] = [
        Self::Openai,
        Self::OpenaiResponses,
        Self::Anthropic,
        Self::WorkersAi,
    ];

    /// As a definition names it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::OpenaiResponses => "openai_responses",
            Self::Anthropic => "anthropic",
            Self::WorkersAi => "workers_ai",
        }
    }

    fn base_url(self) -> &'static str {
        match self {
            Self::Openai | Self::OpenaiResponses => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com",
            Self::WorkersAi => "",
        }
    }
}

impl EngineTool {
    pub const ALL: [Self; 5] = [
        Self::Sleep,
        Self::WaitFor,
        Self::AskPerson,
        Self::StartRun,
        Self::Emit,
    ];

    /// As a definition names it, and a model calls it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sleep => "sleep",
            Self::WaitFor => "wait_for",
            Self::AskPerson => "ask_person",
            Self::StartRun => "start_run",
            Self::Emit => "emit",
        }
    }
}

impl Mind<'_> {
    /// Rounds in a row in which malformed intents are given back for repair.
    #[must_use]
    pub fn repair_attempts(&self) -> u32 {
        match self {
            Self::Model(planner) => planner.repair_attempts,
            Self::Http(planner) => planner.repair_attempts,
        }
    }

    #[must_use]
    pub fn retry(&self) -> RetryPolicy {
        match self {
            Self::Model(planner) => planner.retry,
            Self::Http(planner) => planner.retry,
        }
    }
}

/// Reads the member `planner` of a definition.
pub(super) fn read(fields: &Fields<'_>, flaws: &mut Flaws) -> Option<Planner> {
    if fields.get("planner").is_none() {
        flaws.add("", "\"planner\" is missing");
    }
    let planner = fields.object("planner", flaws)?;
    match planner.required_text("kind", flaws)? {
        "plan" => {
            // What is kept parses again by itself: the kind is the planner's, not the plan's.
            let members: Map<String, Value> = planner
                .iter()
                .filter(|(name, _)| *name != "kind")
                .map(|(name, value)| (name.to_owned(), value.clone()))
                .collect();
            let raw = Value::Object(members);
            match Plan::parse(&raw) {
                Ok(plan) => Some(Planner::Plan(plan, raw)),
                Err(violations) => {
                    flaws.add_all(planner.pointer(), violations);
                    None
                }
            }
        }
        "model" => read_model_planner(&planner, flaws)
            .map(Box::new)
            .map(Planner::Model),
        "http" => read_http_planner(&planner, flaws)
            .map(Box::new)
            .map(Planner::Http),
        "external" => {
            planner.refuse_unknown(&["kind"], flaws);
            Some(Planner::External)
        }
        _ => {
            flaws.add(
                planner.at("kind"),
                "this must be plan, model, http or external",
            );
            None
        }
    }
}

fn read_model_planner(planner: &Fields<'_>, flaws: &mut Flaws) -> Option<ModelPlanner> {
    planner.refuse_unknown(
        &[
            "kind",
            "system",
            "output_schema",
            "repair",
            "engine_tools",
            "agents",
            "models",
            "retry",
        ],
        flaws,
    );
    let system = planner.text("system", flaws).map(str::to_owned);
    let output_schema = planner.schema("output_schema", flaws);
    let repair_attempts = read_repair(planner, flaws);
    let engine_tools = read_engine_tools(planner, flaws);
    let agents = read_agents(planner, flaws);
    let retry = read_retry(planner, flaws);
    if planner.get("models").is_none() {
        flaws.add(planner.pointer(), "\"models\" is missing");
    }
    let listed = planner.array("models", flaws)?;
    let at = planner.at("models");
    if listed.is_empty() || listed.len() > MODELS_MAX {
        flaws.add(
            &at,
            format!("a planner has 1 to {MODELS_MAX} models, tried in their order"),
        );
    }
    let models: Vec<Model> = listed
        .iter()
        .enumerate()
        .filter_map(|(index, value)| read_model(value, &pointer::push(&at, index), flaws))
        .collect();
    Some(ModelPlanner {
        system,
        output_schema,
        repair_attempts,
        engine_tools,
        agents,
        models,
        retry,
    })
}

fn read_repair(planner: &Fields<'_>, flaws: &mut Flaws) -> u32 {
    let given = planner.object("repair", flaws).and_then(|repair| {
        repair.refuse_unknown(&["attempts"], flaws);
        repair.integer("attempts", 0..=REPAIR_ATTEMPTS_MAX, flaws)
    });
    let given = given.and_then(|attempts| u32::try_from(attempts).ok());
    given.unwrap_or(REPAIR_ATTEMPTS_DEFAULT)
}

fn read_engine_tools(planner: &Fields<'_>, flaws: &mut Flaws) -> Vec<EngineTool> {
    let mut tools = Vec::new();
    let at = planner.at("engine_tools");
    for (index, value) in planner
        .array("engine_tools", flaws)
        .unwrap_or_default()
        .iter()
        .enumerate()
    {
        let named = EngineTool::ALL
            .into_iter()
            .find(|tool| value.as_str() == Some(tool.as_str()));
        match named {
            Some(tool) if !tools.contains(&tool) => tools.push(tool),
            Some(tool) => flaws.add(
                pointer::push(&at, index),
                format!("{} is named twice", tool.as_str()),
            ),
            None => {
                let known = EngineTool::ALL.map(EngineTool::as_str).join(", ");
                flaws.add(
                    pointer::push(&at, index),
                    format!("this must be one of {known}"),
                );
            }
        }
    }
    tools
}

fn read_agents(planner: &Fields<'_>, flaws: &mut Flaws) -> Vec<String> {
    let mut agents = Vec::new();
    let at = planner.at("agents");
    for (index, value) in planner
        .array("agents", flaws)
        .unwrap_or_default()
        .iter()
        .enumerate()
    {
        match value
            .as_str()
            .filter(|name| parse_versioned_name(name).is_some())
        {
            Some(agent) => agents.push(agent.to_owned()),
            None => flaws.add(
                pointer::push(&at, index),
                "this must be the name of an agent, or name@version",
            ),
        }
    }
    agents
}

fn read_model(value: &Value, at: &str, flaws: &mut Flaws) -> Option<Model> {
    let fields = Fields::of(value, at, flaws)?;
    fields.refuse_unknown(
        &[
            "provider",
            "name",
            "base_url",
            "api_key",
            "headers",
            "version",
            "parameters",
            "timeout",
            "context_tokens",
        ],
        flaws,
    );
    let providers = Provider::ALL.map(|provider| (provider.as_str(), provider));
    if fields.get("provider").is_none() {
        flaws.add(at, "\"provider\" is missing");
    }
    let provider = fields.choice("provider", &providers, flaws);
    let name = fields.required_text("name", flaws);
    if name.is_some_and(|name| name.is_empty() || name.len() > 256) {
        flaws.add(fields.at("name"), "a model's name has 1 to 256 bytes");
    }
    let api_key = fields.text("api_key", flaws).map(str::to_owned);
    if let Some(Err(message)) = api_key
        .as_deref()
        .map(|key| check_header_template("authorization", key))
    {
        flaws.add(fields.at("api_key"), message);
    }
    let base_url = fields.text("base_url", flaws);
    let base_url = base_url.map(|url| url.trim_end_matches('/').to_owned());
    if let Some(url) = &base_url {
        let target = HttpTarget::of(Method::Post, url, &[]);
        if let Err(message) = target {
            flaws.add(fields.at("base_url"), message);
        } else if url.contains('?') {
            flaws.add(
                fields.at("base_url"),
                "the path of the API is added to this, so it has no query",
            );
        }
    }
    let headers = read_headers(&fields, flaws);
    let version = fields.text("version", flaws).map(str::to_owned);
    if version
        .as_deref()
        .is_some_and(|version| check_header_template("anthropic-version", version).is_err())
    {
        flaws.add(fields.at("version"), "this goes into a header as it is");
    }
    let parameters = fields.object("parameters", flaws);
    if let Some(parameters) = &parameters {
        for name in RESERVED_PARAMETERS {
            if parameters.get(name).is_some() {
                flaws.add(
                    parameters.at(name),
                    format!("{name:?} is the engine's to set"),
                );
            }
        }
    }
    let parameters = parameters
        .map(|given| {
            given
                .iter()
                .map(|(name, value)| (name.to_owned(), value.clone()))
                .collect()
        })
        .unwrap_or_default();
    let timeout_ms = fields.duration_ms("timeout", TOOL_TIMEOUT_MAX, flaws);
    let context_tokens = fields.integer("context_tokens", 1_000..=CONTEXT_TOKENS_MAX, flaws);
    let provider = provider?;
    Some(Model {
        provider,
        name: name?.to_owned(),
        base_url: base_url.unwrap_or_else(|| provider.base_url().to_owned()),
        api_key,
        headers,
        version,
        parameters,
        timeout_ms: timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT),
        context_tokens: context_tokens.unwrap_or(CONTEXT_TOKENS_DEFAULT),
    })
}

fn read_headers(fields: &Fields<'_>, flaws: &mut Flaws) -> Vec<(String, String)> {
    let Some(given) = fields.object("headers", flaws) else {
        return Vec::new();
    };
    let mut headers = Vec::new();
    for (name, value) in given.iter() {
        let checked = match value.as_str() {
            Some(text) => check_header_template(name, text).map(|()| text.to_owned()),
            None => Err("a header's value must be a string".to_owned()),
        };
        match checked {
            Ok(text) => headers.push((name.to_owned(), text)),
            Err(message) => flaws.add(given.at(name), message),
        }
    }
    headers
}

fn read_http_planner(planner: &Fields<'_>, flaws: &mut Flaws) -> Option<HttpPlanner> {
    planner.refuse_unknown(
        &[
            "kind",
            "url",
            "headers",
            "timeout",
            "signing_secret",
            "repair",
            "retry",
        ],
        flaws,
    );
    let timeout_ms = planner.duration_ms("timeout", TOOL_TIMEOUT_MAX, flaws);
    let repair_attempts = read_repair(planner, flaws);
    let retry = read_retry(planner, flaws);
    let headers = read_headers(planner, flaws);
    let signing_secret = planner.text("signing_secret", flaws).map(str::to_owned);
    if let Some(Err(message)) = signing_secret
        .as_deref()
        .map(|secret| check_header_template("webhook-signature", secret))
    {
        flaws.add(planner.at("signing_secret"), message);
    }
    let url = planner.required_text("url", flaws)?;
    match HttpTarget::of(Method::Post, url, &headers) {
        Ok(target) => Some(HttpPlanner {
            target,
            timeout_ms: timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT.min(DurationMs::MAX.ms())),
            signing_secret,
            repair_attempts,
            retry,
        }),
        Err(message) => {
            flaws.add(planner.at("url"), format!("{}: {message}", shorten(url)));
            None
        }
    }
}
