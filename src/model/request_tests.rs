use super::super::testing::*;
use super::super::{FaultKind, Finish};
use super::*;
use crate::tool::{Reply, Transport, TransportKind};

use FaultKind::{
    BadRequest, ContextTooLong, Overloaded, QuotaExhausted, RateLimited, Refused, Unauthorized,
    Unreadable,
};

fn now() -> Timestamp {
    Timestamp::parse("2026-12-01T00:00:00Z").unwrap()
}

fn reply(status: u16, body: &str) -> Reply {
    Reply {
        status,
        retry_after: None,
        content_type: Some("application/json".to_owned()),
        hints: Vec::new(),
        callback_honoured: true,
        body: body.as_bytes().to_vec(),
    }
}

fn mask(text: &str) -> String {
    text.replace("s3cr3t-key", "[secret KEY]")
}

fn read_from(provider: Provider, reply: Reply) -> Result<(ModelAnswer, Json), Box<ModelFault>> {
    read(&model(provider), &Answer::Reply(reply), &mask, now())
}

fn fault(provider: Provider, reply: Reply) -> ModelFault {
    *read_from(provider, reply).unwrap_err()
}

#[test]
fn an_answer_is_kept_as_it_came() {
    for (provider, body) in [
        (
            Provider::Openai,
            r#"{"error":null,"choices":[{"message":{"content":"Hi"}}],"t":1E5}"#,
        ),
        (
            Provider::OpenaiResponses,
            r#"{"error":null,"output":[{"type":"message","content":[{"type":"output_text","text":"Hi"}]}],"t":1E5}"#,
        ),
        (
            Provider::Anthropic,
            r#"{"content":[{"type":"text","text":"Hi"}],"t":1E5}"#,
        ),
        (Provider::WorkersAi, r#"{"response":"Hi","t":1E5}"#),
    ] {
        let (answer, raw) = read_from(provider, reply(200, body)).unwrap();
        assert_eq!(answer.text.as_deref(), Some("Hi"));
        assert_eq!(answer.finish, Finish::Done);
        assert_eq!(json::write(&raw), body);
    }
}

#[test]
fn errors_by_status_and_body() {
    let openai = |kind: &str, code: &str, message: &str| {
        format!(
            r#"{{"error":{{"message":"{message}","type":"{kind}","param":null,"code":{code}}}}}"#
        )
    };
    let anthropic = |kind: &str, message: &str| {
        format!(
            r#"{{"type":"error","error":{{"type":"{kind}","message":"{message}"}},"request_id":"r"}}"#
        )
    };
    let long = "This model's maximum context length is 8192 tokens.";
    for (status, body, kind, code) in [
        // OpenAI, and what is compatible.
        (429, openai("requests", "\"rate_limit_exceeded\"", "Slow down"), RateLimited, Some("rate_limit_exceeded")),
        (429, openai("insufficient_quota", "\"insufficient_quota\"", "No credit"), QuotaExhausted, Some("insufficient_quota")),
        (429, openai("insufficient_quota", "null", "No credit"), QuotaExhausted, Some("insufficient_quota")),
        (429, openai("x", "\"billing_not_active\"", "No card"), QuotaExhausted, Some("billing_not_active")),
        (429, openai("tokens", "\"rate_limit_exceeded\"", "Request too large for m-1 on tokens per min"), ContextTooLong, Some("rate_limit_exceeded")),
        (400, openai("invalid_request_error", "\"context_length_exceeded\"", "Too long"), ContextTooLong, Some("context_length_exceeded")),
        (400, openai("invalid_request_error", "null", long), ContextTooLong, Some("invalid_request_error")),
        (400, openai("BadRequestError", "400", long), ContextTooLong, Some("BadRequestError")),
        (400, openai("exceed_context_size_error", "400", "the request exceeds"), ContextTooLong, Some("exceed_context_size_error")),
        (400, openai("x", "\"content_filter\"", "Filtered"), Refused, Some("content_filter")),
        (400, openai("image_generation_user_error", "\"content_policy_violation\"", "No"), Refused, Some("content_policy_violation")),
        (400, openai("invalid_request_error", "\"unknown_parameter\"", "Unknown"), BadRequest, Some("unknown_parameter")),
        (401, openai("invalid_request_error", "\"invalid_api_key\"", "Incorrect key"), Unauthorized, Some("invalid_api_key")),
        (403, openai("x", "\"unsupported_country\"", "No"), Unauthorized, Some("unsupported_country")),
        (404, openai("invalid_request_error", "\"model_not_found\"", "None such"), BadRequest, Some("model_not_found")),
        (503, r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#.to_owned(), Overloaded, Some("unavailable_error")),
        (500, r#"{"error":{"code":13,"message":"x"}}"#.to_owned(), Overloaded, Some("13")),
        (402, r#"{"error":{"message":"Insufficient Balance"}}"#.to_owned(), QuotaExhausted, None),
        (429, r#"[{"error":{"code":429,"message":"Quota exceeded for a minute","status":"RESOURCE_EXHAUSTED"}}]"#.to_owned(), RateLimited, Some("RESOURCE_EXHAUSTED")),
        (404, r#"{"error":"model 'm-1' not found"}"#.to_owned(), BadRequest, None),
        (422, r#"{"detail":[{"loc":["body"],"msg":"no"}]}"#.to_owned(), BadRequest, None),
        (429, r#"{"object":"error","message":"Rate limit","type":"rate_limited","code":"1300"}"#.to_owned(), RateLimited, Some("1300")),
        // Anthropic.
        (529, anthropic("overloaded_error", "Overloaded"), Overloaded, Some("overloaded_error")),
        (500, anthropic("api_error", "Internal"), Overloaded, Some("api_error")),
        (429, anthropic("rate_limit_error", "Slow down"), RateLimited, Some("rate_limit_error")),
        (401, anthropic("authentication_error", "invalid x-api-key"), Unauthorized, Some("authentication_error")),
        (413, anthropic("request_too_large", "Too large"), ContextTooLong, Some("request_too_large")),
        (400, anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"), ContextTooLong, Some("invalid_request_error")),
        (400, anthropic("invalid_request_error", "Your credit balance is too low"), QuotaExhausted, Some("invalid_request_error")),
        (402, anthropic("billing_error", "Pay"), QuotaExhausted, Some("billing_error")),
        (400, anthropic("invalid_request_error", "max_tokens: required"), BadRequest, Some("invalid_request_error")),
        // The platform's own.
        (429, r#"{"errors":[{"code":3036,"message":"you have used up your daily free allocation of 10,000 neurons"}],"success":false}"#.to_owned(), QuotaExhausted, Some("3036")),
        (429, "3040: Capacity temporarily exceeded".to_owned(), RateLimited, None),
        // Whatever stands before them.
        (413, "<html>too large</html>".to_owned(), ContextTooLong, None),
        (502, "<html>Bad Gateway: insufficient_quota</html>".to_owned(), Overloaded, None),
        (500, String::new(), Overloaded, None),
        (599, String::new(), Overloaded, None),
        (408, String::new(), Overloaded, None),
        (409, String::new(), Overloaded, None),
        (425, String::new(), Overloaded, None),
        (429, String::new(), RateLimited, None),
        (401, String::new(), Unauthorized, None),
        (403, String::new(), Unauthorized, None),
        (404, String::new(), BadRequest, None),
        (418, String::new(), BadRequest, None),
        (302, String::new(), BadRequest, None),
        (100, String::new(), BadRequest, None),
        (600, String::new(), BadRequest, None),
    ] {
        let found = fault(Provider::Openai, reply(status, &body));
        assert_eq!((found.kind, found.code.as_deref()), (kind, code), "{status} {body}");
        assert_eq!((found.status_code, found.retry_after_ms), (Some(status), None));
    }
}

#[test]
fn errors_within_a_success() {
    for (body, kind, status) in [
        (
            r#"{"error":{"code":429,"message":"Slow down"}}"#,
            RateLimited,
            429,
        ),
        (
            r#"{"error":{"code":502,"message":"Upstream"},"choices":[]}"#,
            Overloaded,
            502,
        ),
        (
            r#"{"error":{"code":400,"message":"prompt is too long"}}"#,
            ContextTooLong,
            400,
        ),
        (
            r#"{"status":"failed","output":[],"error":{"code":"server_error","message":"x"}}"#,
            Overloaded,
            200,
        ),
        (
            r#"{"status":"failed","error":{"code":"rate_limit_exceeded","message":"x"}}"#,
            RateLimited,
            200,
        ),
        (
            r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#,
            Overloaded,
            200,
        ),
        (
            r#"{"type":"error","error":{"type":"authentication_error","message":"x"}}"#,
            Unauthorized,
            200,
        ),
        (
            r#"{"error":{"code":"insufficient_quota","message":"x"}}"#,
            QuotaExhausted,
            200,
        ),
        (
            r#"{"error":{"code":"invalid_prompt","message":"x"}}"#,
            Refused,
            200,
        ),
        (r#"{"error":{"code":7,"message":"x"}}"#, Unreadable, 200),
        (r#"{"error":"x"}"#, Unreadable, 200),
    ] {
        let found = fault(Provider::OpenaiResponses, reply(200, body));
        assert_eq!(
            (found.kind, found.status_code),
            (kind, Some(status)),
            "{body}"
        );
    }
}

#[test]
fn successes_that_are_no_answers() {
    for (body, expected) in [
        ("", "is not usable JSON: it is empty."),
        (" \n", "is not usable JSON: it is empty."),
        ("<html>", "It starts with: <html>."),
        ("{\"choices\":", "is not usable JSON: "),
        (
            "data: {\"choices\":[]}\n\n",
            "it is a stream, and none was asked for: data: {\"choices\":[]}.",
        ),
        (r#"{"n":1e400}"#, "beyond the range of a double"),
        (
            "null",
            "in a form that is not that of openai: it has no \"choices\".",
        ),
    ] {
        let found = fault(Provider::Openai, reply(200, body));
        assert_eq!(found.kind, Unreadable, "{body}");
        assert_eq!(found.status_code, Some(200));
        assert!(found.message.contains(expected), "{}", found.message);
    }
    let deep = format!("{}1{}", "[".repeat(129), "]".repeat(129));
    assert_eq!(fault(Provider::Openai, reply(200, &deep)).kind, Unreadable);
    let found = fault(Provider::Openai, reply(204, ""));
    assert_eq!(found.kind, Unreadable);
}

#[test]
fn no_reply_at_all() {
    for (kind, expected, message) in [
        (
            TransportKind::Refused,
            Overloaded,
            "refused the connection: why.",
        ),
        (
            TransportKind::TimedOut,
            Overloaded,
            "did not answer in time: why.",
        ),
        (TransportKind::Dns, Overloaded, "was not found: why."),
        (
            TransportKind::Tls,
            Overloaded,
            "made no secure connection: why.",
        ),
        (
            TransportKind::Closed,
            Overloaded,
            "ended the connection before its answer: why.",
        ),
        (
            TransportKind::Blocked,
            Unauthorized,
            "is at an address that is not called: why. Change the model's base_url.",
        ),
        (
            TransportKind::TooLarge { limit: 9 },
            Unreadable,
            "answered with more than 9 bytes: why.",
        ),
    ] {
        let answer = Answer::Transport(Transport {
            kind,
            message: "why".to_owned(),
        });
        let found = *read(&model(Provider::Anthropic), &answer, &mask, now()).unwrap_err();
        assert_eq!(found.kind, expected, "{kind:?}");
        assert_eq!(
            (found.status_code, found.code, found.retry_after_ms),
            (None, None, None)
        );
        let start = format!("anthropic m-1 (models.example) {message}");
        assert!(found.message.starts_with(&start), "{}", found.message);
    }
}

#[test]
fn the_provider_has_the_last_word_on_trying_again() {
    for (status, body, hint, kind) in [
        (500, "", "false", BadRequest),
        (529, "", "false", BadRequest),
        (429, "", "false", BadRequest),
        (409, "", "false", BadRequest),
        (429, "insufficient_quota", "false", QuotaExhausted),
        (429, "insufficient_quota", "true", QuotaExhausted),
        (429, "", "true", RateLimited),
        (500, "", "true", Overloaded),
        (400, "", "true", Overloaded),
        (401, "", "true", Overloaded),
        (400, "prompt is too long", "true", ContextTooLong),
        (400, "", "false", BadRequest),
        (500, "", "maybe", Overloaded),
    ] {
        let mut reply = reply(status, body);
        reply.hints = vec![("x-should-retry".to_owned(), hint.to_owned())];
        assert_eq!(
            fault(Provider::Openai, reply).kind,
            kind,
            "{status} {body} {hint}"
        );
    }
}

#[test]
fn when_to_try_again() {
    let year = 365 * 86_400_000;
    for (status, retry_after, exact, expected) in [
        (429, Some("7"), None, Some(7_000)),
        (
            503,
            Some("Tue, 01 Dec 2026 00:00:09 GMT"),
            None,
            Some(9_000),
        ),
        (529, Some("7"), Some("1500"), Some(1_500)),
        (429, None, Some("0.2"), Some(1)),
        (429, None, Some("1e300"), Some(year)),
        (429, Some("7"), Some("soon"), Some(7_000)),
        (429, Some("7"), Some("-1"), Some(7_000)),
        (429, None, Some("NaN"), None),
        (429, Some("soon"), None, None),
        (429, None, None, None),
        // What does not pass is not waited for.
        (401, Some("7"), Some("1"), None),
    ] {
        let mut reply = reply(status, "");
        reply.retry_after = retry_after.map(str::to_owned);
        let exact = exact.map(|wait| ("retry-after-ms".to_owned(), wait.to_owned()));
        reply.hints = exact.into_iter().collect();
        let found = fault(Provider::Openai, reply).retry_after_ms;
        assert_eq!(found, expected, "{retry_after:?}");
    }
}

#[test]
fn what_a_person_is_told() {
    let body =
        r#"{"error":{"message":"Incorrect API key:\n s3cr3t-key","code":"invalid_api_key"}}"#;
    let found = fault(Provider::Openai, reply(401, body));
    assert_eq!(
        found.message,
        "openai m-1 (models.example) answered 401 (invalid_api_key): Incorrect API key:  [secret KEY]. \
         Check the model's api_key, the secret in it, and what that key may use."
    );
    assert_eq!(
        fault(Provider::WorkersAi, reply(500, "")).message,
        "workers_ai m-1 (by binding) answered 500. It may answer when it is asked again."
    );
    let found = fault(Provider::Openai, reply(302, "")).message;
    assert!(
        found.contains("answered 302, a redirect that is not followed."),
        "{found}"
    );

    // A secret in the address is named, not told; and none is left where a text is cut.
    let hidden = Model {
        base_url: "https://{{ secrets.KEY }}/v1".to_owned(),
        ..model(Provider::Openai)
    };
    let cut = format!("{}s3cr3t-key", "é".repeat(495));
    let answer = Answer::Reply(reply(500, &cut));
    let found = read(&hidden, &answer, &mask, now()).unwrap_err().message;
    assert!(
        found.starts_with("openai m-1 ({{ secrets.KEY }}) answered 500: éé"),
        "{found}"
    );
    assert!(found.contains("é[secr… It may answer"), "{found}");

    let code = format!(r#"{{"error":{{"code":"{}s3cr3t-key"}}}}"#, "c".repeat(95));
    let found = fault(Provider::Openai, reply(400, &code)).code.unwrap();
    assert!(found.ends_with("c[secr…"), "{found}");
    let found = fault(Provider::Openai, reply(500, "a\u{7}\u{1b}[2Jb")).message;
    assert!(found.contains("a\u{fffd}\u{fffd}[2Jb"), "{found}");
}
