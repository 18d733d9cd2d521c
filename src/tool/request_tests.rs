use serde_json::json;

use super::super::outcome::{Outcome, Sent};
use super::*;

fn tool(method: &str, url: &str, headers: Value) -> Tool {
    Tool::parse(&json!({
        "http": { "method": method, "url": url, "headers": headers },
        "verify": { "http": { "url": url } }, "timeout": "PT5S"
    }))
    .unwrap()
}

fn call(arguments: &Value) -> Call<'_> {
    Call {
        run_id: "run_1",
        step_index: 3,
        attempt: 2,
        idempotency_key: "abc",
        traceparent: "00-t-s-01",
        callback_url: Some("https://d.example/v1/callbacks/tok"),
        arguments,
    }
}

fn secrets(name: &str) -> Option<String> {
    match name {
        "KEY" => Some("s3cret+/?#&".to_owned()),
        "BASE" => Some("https://hooks.example/T0/B0".to_owned()),
        "BAD" => Some("a\r\nX: y".to_owned()),
        "USER" => Some("https://u:p@host".to_owned()),
        _ => None,
    }
}

#[test]
fn a_post_carries_its_arguments_and_the_headers_of_the_contract() {
    let arguments = json::read(br#"{"b":1,"id":18446744073709551616,"a":[1.50]}"#).unwrap();
    let tool = tool(
        "POST",
        "https://a.example/x",
        json!({ "Authorization": "Bearer {{ secrets.KEY }}", "Accept": "text/json" }),
    );
    let request = tool.request(&call(&arguments), &secrets).unwrap();
    assert_eq!(
        request.body.as_deref(),
        Some(r#"{"b":1,"id":18446744073709551616,"a":[1.50]}"#)
    );
    assert_eq!(request.url, "https://a.example/x");
    assert_eq!(request.timeout_ms, 5000);
    let agent = format!("Dormouse/{}", env!("CARGO_PKG_VERSION"));
    let headers: Vec<(&str, &str)> = request
        .headers
        .iter()
        .map(|(n, v)| (n.as_str(), v.as_str()))
        .collect();
    assert_eq!(
        headers,
        [
            ("Idempotency-Key", "abc"),
            ("traceparent", "00-t-s-01"),
            ("Dormouse-Run-Id", "run_1"),
            ("Dormouse-Step-Index", "3"),
            ("Dormouse-Attempt", "2"),
            ("user-agent", agent.as_str()),
            ("Dormouse-Callback", "https://d.example/v1/callbacks/tok"),
            ("content-type", "application/json"),
            ("Authorization", "Bearer s3cret+/?#&"),
            ("Accept", "text/json"),
        ]
    );
    let verify = tool
        .verify_request(&call(&json!({})), &secrets)
        .unwrap()
        .unwrap();
    assert_eq!((verify.method, verify.body), (Method::Get, None));
    assert!(
        verify
            .headers
            .contains(&("Idempotency-Key".to_owned(), "abc".to_owned()))
    );
}

#[test]
fn a_get_carries_them_in_its_query() {
    for (url, arguments, expected) in [
        ("https://a/x", json!({}), "https://a/x"),
        (
            "https://a/x",
            json!({ "q": "a b&c=é~*" }),
            "https://a/x?q=a+b%26c%3D%C3%A9%7E*",
        ),
        (
            "https://a/x",
            json!({ "a b": [1, true, null, "x"], "e": [] }),
            "https://a/x?a+b=1&a+b=true&a+b=&a+b=x",
        ),
        (
            "https://a/x?k=v",
            json!({ "o": { "p": [1] } }),
            "https://a/x?k=v&o=%7B%22p%22%3A%5B1%5D%7D",
        ),
        (
            "https://a/x?",
            json!({ "n": 9_007_199_254_740_993_u64 }),
            "https://a/x?n=9007199254740993",
        ),
    ] {
        let request = tool("GET", url, json!({}))
            .request(&call(&arguments), &secrets)
            .unwrap();
        assert_eq!(request.url, expected);
        assert_eq!(request.body, None);
        assert_eq!(request.loggable_url, url);
    }
    for arguments in [json!([1]), json!("x"), json!({ "x": "y".repeat(20_000) })] {
        let found = tool("DELETE", "https://a/", json!({})).request(&call(&arguments), &secrets);
        assert!(matches!(found, Err(RequestError::Arguments { .. })));
    }
}

#[test]
fn a_secret_in_a_url_is_encoded_for_its_place() {
    for (url, expected) in [
        (
            "https://a/{{ secrets.KEY }}/x",
            "https://a/s3cret+/%3F%23&/x",
        ),
        (
            "https://a/?k={{ secrets.KEY }}&l=1",
            "https://a/?k=s3cret%2B%2F%3F%23%26&l=1",
        ),
        ("{{ secrets.BASE }}/x", "https://hooks.example/T0/B0/x"),
    ] {
        let request = tool("POST", url, json!({}))
            .request(&call(&json!({})), &secrets)
            .unwrap();
        assert_eq!(request.url, expected);
        assert_eq!(request.loggable_url, url);
    }
    for url in [
        "{{ secrets.USER }}/x",
        "https://{{ secrets.BAD }}/",
        "{{ secrets.KEY }}",
    ] {
        let found = tool("POST", url, json!({})).request(&call(&json!({})), &secrets);
        assert!(matches!(found, Err(RequestError::BadUrl { .. })), "{url}");
    }
}

#[test]
fn an_unusable_secret_is_named_and_not_quoted() {
    for (value, expected) in [
        ("{{ secrets.NONE }}", "the secret NONE is not stored"),
        (
            "{{ secrets.BAD }}",
            "the secret BAD holds what a header cannot carry",
        ),
    ] {
        let found =
            tool("POST", "https://a/", json!({ "X": value })).request(&call(&json!({})), &secrets);
        assert_eq!(found.unwrap_err().to_string(), expected);
    }
}

#[test]
fn nothing_printable_holds_a_secret() {
    let tool = tool(
        "GET",
        "https://a/?k={{ secrets.KEY }}",
        json!({ "X": "{{ secrets.KEY }}" }),
    );
    let request = tool
        .request(&call(&json!({ "pin": "1234" })), &secrets)
        .unwrap();
    let shown = format!("{request:?}");
    assert!(
        !shown.contains("s3cret") && !shown.contains("1234"),
        "{shown}"
    );
    assert_eq!(
        request.mask("no such host: https://a/?k=s3cret%2B%2F%3F%23%26 (s3cret+/?#&)"),
        "no such host: https://a/?k=[secret KEY] ([secret KEY])"
    );
    assert_eq!(request.mask("sent s3cret+…"), "sent [secret KEY]…");
    assert_eq!(request.mask("sent s3c…"), "sent s3c…");
    let outcome = Outcome::Retryable {
        status_code: Some(500),
        error: "you sent s3cret+/?#&".to_owned(),
        retry_after_ms: None,
        sent: Sent::Maybe,
    };
    assert!(format!("{:?}", outcome.masked(&request)).contains("you sent [secret KEY]"));
}
