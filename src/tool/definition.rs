//! A tool's definition.

use serde_json::Value;

use super::target::{HttpTarget, Method};
use crate::fields::{Fields, Flaws};
use crate::json::Violation;
use crate::retry::{Jitter, RetryPolicy};
use crate::words::DurationMs;
use crate::words::limits::{
    CALLBACK_TIMEOUT_DEFAULT, CALLBACK_TIMEOUT_MAX, MAX_ATTEMPTS_MAX, TOOL_TIMEOUT_DEFAULT,
    TOOL_TIMEOUT_MAX,
};

/// One version of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// For people and models; empty when none was given.
    pub description: String,
    /// The JSON Schema of the arguments.
    pub parameters: Option<Value>,
    /// The JSON Schema of the result.
    pub result: Option<Value>,
    /// The request that a call is.
    pub http: HttpTarget,
    /// For one HTTP call. Zero is due at once.
    pub timeout_ms: i64,
    /// From a 202 until the callback must have come.
    pub callback_timeout_ms: i64,
    /// How often and when a failed call is sent again.
    pub retry: RetryPolicy,
    /// What sending it again can do.
    pub effect: Effect,
    /// Whether a person must approve each call.
    pub requires_approval: bool,
    /// The request that asks what became of a call whose outcome is unknown.
    pub verify: Option<HttpTarget>,
}

/// What a second sending of the same call can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it may be repeated freely.
    Read,
    /// Nothing: the endpoint honours `Idempotency-Key`.
    #[default]
    Idempotent,
    /// Harm: never sent again once its outcome is unknown.
    AtMostOnce,
}

impl Tool {
    /// Reads a definition, with the defaults of the contract. The schemas in it are kept, not
    /// compiled.
    ///
    /// # Errors
    /// All that is wrong with it, each with its pointer in `value`.
    pub fn parse(value: &Value) -> Result<Tool, Vec<Violation>> {
        let mut flaws = Flaws::default();
        let tool = read_tool(value, &mut flaws);
        flaws
            .none_in(tool)?
            .ok_or_else(|| vec![Violation::new("", "\"http\" is missing")])
    }

    /// The secrets that its requests need, each once.
    #[must_use]
    pub fn secret_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for target in std::iter::once(&self.http).chain(&self.verify) {
            for name in target.secret_names() {
                if !names.iter().any(|known| known == name) {
                    names.push(name.to_owned());
                }
            }
        }
        names
    }
}

fn read_tool(value: &Value, flaws: &mut Flaws) -> Option<Tool> {
    let fields = Fields::of(value, "", flaws)?;
    fields.refuse_unknown(
        &[
            "description",
            "parameters",
            "result",
            "http",
            "timeout",
            "callback_timeout",
            "retry",
            "effect",
            "requires_approval",
            "verify",
        ],
        flaws,
    );
    let effects = [
        ("read", Effect::Read),
        ("idempotent", Effect::Idempotent),
        ("at_most_once", Effect::AtMostOnce),
    ];
    let description = fields.text("description", flaws).unwrap_or_default();
    let parameters = fields.schema("parameters", flaws);
    let result = fields.schema("result", flaws);
    let http = read_http(&fields, Method::Post, flaws);
    let timeout_ms = fields.duration_ms("timeout", TOOL_TIMEOUT_MAX, flaws);
    let callback_timeout_ms = fields.duration_ms("callback_timeout", CALLBACK_TIMEOUT_MAX, flaws);
    let retry = read_retry(&fields, flaws);
    let effect = fields.choice("effect", &effects, flaws);
    let requires_approval = fields.boolean("requires_approval", flaws);
    let verify = fields.object("verify", flaws).and_then(|verify| {
        verify.refuse_unknown(&["http"], flaws);
        // It only asks, so it is a GET unless it says otherwise.
        read_http(&verify, Method::Get, flaws)
    });
    Some(Tool {
        description: description.to_owned(),
        parameters,
        result,
        http: http?,
        timeout_ms: timeout_ms.unwrap_or(TOOL_TIMEOUT_DEFAULT.ms()),
        callback_timeout_ms: callback_timeout_ms.unwrap_or(CALLBACK_TIMEOUT_DEFAULT.ms()),
        retry,
        effect: effect.unwrap_or_default(),
        requires_approval: requires_approval.unwrap_or_default(),
        verify,
    })
}

fn read_http(fields: &Fields<'_>, method: Method, flaws: &mut Flaws) -> Option<HttpTarget> {
    if fields.get("http").is_none() {
        flaws.add(fields.pointer(), "\"http\" is missing");
    }
    let http = fields.object("http", flaws)?;
    HttpTarget::read(&http, method, flaws)
}

/// Reads the member `retry` of a definition.
pub fn read_retry(fields: &Fields<'_>, flaws: &mut Flaws) -> RetryPolicy {
    let mut policy = RetryPolicy::default();
    let Some(retry) = fields.object("retry", flaws) else {
        return policy;
    };
    retry.refuse_unknown(&["max_attempts", "base", "max_wait", "jitter"], flaws);
    let attempts = retry.integer("max_attempts", 1..=u64::from(MAX_ATTEMPTS_MAX), flaws);
    if let Some(attempts) = attempts.and_then(|attempts| u32::try_from(attempts).ok()) {
        policy.max_attempts = attempts;
    }
    if let Some(base_ms) = retry.duration_ms("base", DurationMs::MAX, flaws) {
        policy.base_ms = base_ms;
    }
    if let Some(max_wait_ms) = retry.duration_ms("max_wait", DurationMs::MAX, flaws) {
        policy.max_wait_ms = max_wait_ms;
    }
    let jitters = [
        ("full", Jitter::Full),
        ("equal", Jitter::Equal),
        ("decorrelated", Jitter::Decorrelated),
        ("none", Jitter::None),
    ];
    if let Some(jitter) = retry.choice("jitter", &jitters, flaws) {
        policy.jitter = jitter;
    }
    policy
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_contract_s_example_and_its_defaults() {
        let tool = Tool::parse(&json!({
            "description": "Charge a card",
            "parameters": { "type": "object" },
            "result": { "type": "object" },
            "http": { "method": "POST", "url": "https://pay.example/charges",
                      "headers": { "Authorization": "Bearer {{ secrets.PAY_KEY }}" } },
            "timeout": "PT10S", "callback_timeout": "P7D",
            "retry": { "max_attempts": 3, "base": "PT2S", "max_wait": "PT1M", "jitter": "none" },
            "effect": "at_most_once",
            "requires_approval": true,
            "verify": { "http": { "url": "https://pay.example/charges/{{ secrets.ID }}" } }
        }))
        .unwrap();
        assert_eq!(tool.timeout_ms, 10_000);
        assert_eq!(tool.callback_timeout_ms, 7 * 86_400_000);
        assert_eq!(tool.retry.max_attempts, 3);
        assert_eq!(tool.retry.base_ms, 2000);
        assert_eq!(tool.retry.max_wait_ms, 60_000);
        assert_eq!(tool.retry.jitter, Jitter::None);
        assert_eq!(tool.effect, Effect::AtMostOnce);
        assert!(tool.requires_approval);
        assert_eq!(tool.secret_names(), ["PAY_KEY", "ID"]);
        assert_eq!(tool.verify.unwrap().method, Method::Get);

        let tool = Tool::parse(&json!({ "http": { "url": "https://a.example/" } })).unwrap();
        assert_eq!(tool.http.method, Method::Post);
        assert_eq!(tool.timeout_ms, 30_000);
        assert_eq!(tool.callback_timeout_ms, 86_400_000);
        assert_eq!(tool.retry, RetryPolicy::default());
        assert_eq!(tool.effect, Effect::Idempotent);
        assert!(!tool.requires_approval && tool.verify.is_none());
    }

    #[test]
    fn attempts_are_a_number_that_can_be_kept() {
        for (attempts, valid) in [
            (json!(1), true),
            (json!(1000), true),
            (json!(0), false),
            (json!(-1), false),
            (json!(1.5), false),
            (json!(null), false),
            (json!("3"), false),
            (json!(1001), false),
            (json!(1_000_000_000), false),
        ] {
            let tool =
                json!({ "http": { "url": "https://a/" }, "retry": { "max_attempts": attempts } });
            let found = Tool::parse(&tool).map_err(|found| found[0].pointer.clone());
            match valid {
                true => assert!(found.is_ok(), "{attempts}"),
                false => assert_eq!(found.unwrap_err(), "/retry/max_attempts", "{attempts}"),
            }
        }
    }

    #[test]
    fn all_flaws_come_at_once() {
        let found = Tool::parse(&json!({
            "descripton": "a typo", "parameters": "x", "timeout": "PT11M", "callback_timeout": "P366D",
            "retry": { "base": "1s", "max_wait": "-PT1S", "jitter": "some", "tries": 2 },
            "effect": "write", "requires_approval": "yes", "verify": {}
        }))
        .unwrap_err();
        let pointers: Vec<&str> = found.iter().map(|v| v.pointer.as_str()).collect();
        assert_eq!(
            pointers,
            [
                "/descripton",
                "/parameters",
                "",
                "/timeout",
                "/callback_timeout",
                "/retry/tries",
                "/retry/base",
                "/retry/max_wait",
                "/retry/jitter",
                "/effect",
                "/requires_approval",
                "/verify"
            ]
        );
        for value in [json!(null), json!([]), json!({}), json!({ "http": 1 })] {
            assert!(!Tool::parse(&value).unwrap_err().is_empty(), "{value}");
        }
    }
}
