//! The API as its clients see it.

use serde_json::json;

use crate::json::Value;
use crate::words::limits::{DEFINITION_BYTES_MAX, VALUE_BYTES_MAX};

use super::routes::{ROUTES, To};
use super::testing::{ADMIN, DEV, Fake, block_on, header, read};
use super::{Body, Request, respond};

const TOOL: &str = r#"{"http":{"method":"POST","url":"https://pay.example/charges"}}"#;
const EXTERNAL: &str = r#"{"planner":{"kind":"external"}}"#;
const SLEEP: &str = r#"{"plan":{"steps":[{"id":"a","sleep":"P1D"}]},"input":{"n":1E5}}"#;
const UUID: &str = "018f0000000070008000000000000000";

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value}"))
        .to_owned()
}

/// A run that waits, of the key's tenant.
fn sleeping_run(fake: &Fake, key: &str) -> String {
    let started = fake.call("POST /v1/runs", key, SLEEP);
    assert_eq!(started.status, 202, "{}", started.body);
    text(&read(&started)["run_id"])
}

/// A run of an external planner that has asked for a tool that there is none of: the run's id and
/// its dead letter's.
fn blocked_run(fake: &Fake, key: &str) -> (String, String) {
    fake.call("PUT /v1/agents/outside", key, EXTERNAL);
    let run = read(&fake.call("POST /v1/runs", key, r#"{"agent":"outside"}"#));
    let run_id = text(&run["run_id"]);
    let taken = fake.call("POST /v1/envelopes", key, &requested(&run_id, 0, "pay"));
    assert_eq!(taken.status, 202, "{}", taken.body);
    let run = read(&fake.call(&format!("GET /v1/runs/{run_id}"), key, ""));
    assert_eq!(run["status"], "blocked", "{run}");
    (run_id, text(&run["waiting_for"][0]["dead_letter_id"]))
}

fn requested(run_id: &str, step: u32, tool: &str) -> String {
    json!({
        "event_type": "tool.requested", "run_id": run_id, "step_index": step,
        "payload": { "tool": tool, "arguments": { "amount": 5 } }
    })
    .to_string()
}

#[test]
fn every_route_but_the_documents_wants_its_key() {
    let fake = Fake::new();
    let revoked = {
        let key = fake.tenant_key("acme", "admin");
        let key_id = key.split('.').nth(1).unwrap();
        let line = format!("DELETE /v1/tenants/acme/keys/key_{key_id}");
        assert_eq!(fake.call("GET /v1/runs", &key, "").status, 200);
        assert_eq!(fake.call(&line, ADMIN, "").status, 204);
        assert_eq!(fake.call(&line, ADMIN, "").status, 204);
        key
    };
    let unauthorized = fake.call("GET /v1/runs", "", "");
    for route in ROUTES {
        let line = format!("{} {}", route.method, route.path.replace(['{', '}'], "x"));
        if let To::Document(_) | To::Callback | To::ApprovalLink = route.to {
            assert_ne!(fake.call(&line, "", "").status, 401, "{line}");
            continue;
        }
        // The operator's token opens the desk of what no tenant owns, and nothing else of a tenant's.
        let wrong_realm = match route.to {
            To::Operator(_) => DEV,
            To::Tenant(_, act) if act.is_of_the_desk() => "wrong too",
            _ => ADMIN,
        };
        for key in ["", "wrong", "dmk_acme.x.y", &revoked, wrong_realm] {
            let response = fake.call(&line, key, "not JSON");
            assert_eq!(response.status, 401, "{line} with {key}");
            assert_eq!(response.body, unauthorized.body);
            assert_eq!(header(&response, "www-authenticate"), Some("Bearer"));
        }
    }
    let mut fake = fake;
    fake.config.admin_token = None;
    fake.config.dev_api_key = None;
    assert_eq!(
        fake.call("POST /v1/tenants", ADMIN, r#"{"tenant_id":"b"}"#)
            .status,
        401
    );
    assert_eq!(fake.call("GET /v1/runs", DEV, "").status, 401);
}

#[test]
fn a_role_opens_its_routes_and_those_of_the_lower_ones() {
    let fake = Fake::new();
    let roles = ["reader", "operator", "developer", "admin"];
    let keys: Vec<_> = roles
        .iter()
        .map(|role| fake.tenant_key("acme", role))
        .collect();
    for route in ROUTES {
        let To::Tenant(least, _) = route.to else {
            continue;
        };
        let line = format!("{} {}", route.method, route.path.replace(['{', '}'], "x"));
        for (role, key) in roles.iter().zip(&keys) {
            let refused = super::auth::Role::parse(role).unwrap() < least;
            let response = fake.call(&line, key, "{}");
            assert_eq!(response.status == 403, refused, "{line} as {role}");
            if refused {
                assert_eq!(read(&response)["role_needed"], least.as_str());
            }
        }
    }
}

/// Each route that names a thing of a tenant, asked by another tenant, with a body it would take.
#[test]
fn what_is_anothers_is_as_what_is_missing() {
    let fake = Fake::new();
    let (ours, theirs) = (
        fake.tenant_key("ours", "admin"),
        fake.tenant_key("theirs", "admin"),
    );
    fake.call("PUT /v1/tools/pay2", &ours, TOOL);
    let (run_id, letter) = blocked_run(&fake, &ours);
    let approval = {
        let plan = r#"{"plan":{"steps":[{"id":"a","approval":{"prompt":"Well?"}}]}}"#;
        let asking = read(&fake.call("POST /v1/runs", &ours, plan));
        text(&asking["waiting_for"][0]["approval_id"])
    };
    let stray = {
        let body = requested(&format!("run_{UUID}"), 0, "pay");
        let rejected = read(&fake.call("POST /v1/envelopes", &ours, &body));
        text(&rejected["rejected"][0]["dead_letter_id"])
    };
    let before = read(&fake.call(&format!("GET /v1/runs/{run_id}/events"), &ours, ""));
    let not_found = fake.call("GET /v1/tools/missing", &theirs, "").body;
    for route in ROUTES {
        let To::Tenant(..) = route.to else { continue };
        let (own, missing, malformed): (&[&str], _, _) = if route.path.contains("{approval_id}") {
            (&[&approval], format!("apr_{UUID}"), "apr_1")
        } else if route.path.contains("{run_id}") {
            (&[&run_id], format!("run_{UUID}"), "run_1")
        } else if route.path.contains("{dead_letter_id}") {
            (&[&letter, &stray], format!("dl_{UUID}"), "a%2Fb")
        } else if route.path.contains("{name}") && route.method != "PUT" {
            (&["pay2"], "nothing".to_owned(), "A%00")
        } else {
            assert!(
                !route.path.contains('{') || route.method == "PUT",
                "{}",
                route.path
            );
            continue;
        };
        let body = match route.path {
            path if path.ends_with("/resolve") => r#"{"result":1}"#,
            path if path.ends_with("/limits") => r#"{"max_steps":1000}"#,
            "/v1/approvals/{approval_id}" if route.method == "POST" => r#"{"decision":"approved"}"#,
            _ => "",
        };
        for id in own.iter().copied().chain([missing.as_str(), malformed]) {
            let (start, rest) = route.path.split_once('{').unwrap();
            let rest = rest.split_once('}').unwrap().1.replace(['{', '}'], "");
            let line = format!("{} {start}{id}{rest}", route.method);
            let response = fake.call(&line, &theirs, body);
            assert_eq!(
                (response.status, &response.body),
                (404, &not_found),
                "{line}"
            );
        }
    }
    let after = read(&fake.call(&format!("GET /v1/runs/{run_id}/events"), &ours, ""));
    assert_eq!(before, after);
    let of_run = format!("GET /v1/dead-letters?run_id={run_id}");
    assert_eq!(
        fake.call(&of_run, &theirs, "").body,
        r#"{"items":[],"next_cursor":null}"#
    );
    let envelope = requested(&run_id, 0, "pay");
    let foreign = read(&fake.call("POST /v1/envelopes", &theirs, &envelope));
    let missing = fake.call(
        "POST /v1/envelopes",
        &theirs,
        &requested(&format!("run_{UUID}"), 0, "pay"),
    );
    assert_eq!(foreign["errors"], read(&missing)["errors"]);
}

#[test]
fn a_request_is_refused_at_the_door() {
    let fake = Fake::new();
    let json = [("content-type", "application/json")];
    for (line, headers, body, status, kind) in [
        ("GET /nothing", &json[..], "", 404, "not-found"),
        ("GET /dev/runs", &json, "", 404, "not-found"),
        ("PATCH /v1/runs", &json, "{}", 405, "method-not-allowed"),
        (
            "POST /v1/runs",
            &[("content-type", "multipart/form-data; boundary=x")],
            "{}",
            415,
            "unsupported-media-type",
        ),
        ("POST /v1/runs", &[], "{}", 422, "invalid-run"),
        ("POST /v1/runs", &json, "", 400, "invalid-json"),
        ("POST /v1/runs", &json, r#"{"agent":}"#, 400, "invalid-json"),
        (
            "POST /v1/runs",
            &json,
            "{\"agent\":\"a\\u0000\"}",
            400,
            "invalid-json",
        ),
        (
            "POST /v1/runs",
            &json,
            r#"{"agent":"a","agent":"b"}"#,
            400,
            "invalid-json",
        ),
        (
            "POST /v1/runs",
            &json,
            r#"{"agent":"a","inptu":1}"#,
            422,
            "invalid-run",
        ),
        (
            "POST /v1/runs",
            &json,
            r#"{"agent":"missing"}"#,
            422,
            "invalid-run",
        ),
        ("POST /v1/runs?wait=1", &json, "{}", 400, "invalid-query"),
        (
            "POST /v1/runs",
            &[("idempotency-key", "")],
            "{}",
            400,
            "invalid-header",
        ),
        ("GET /v1/runs?status=done", &json, "", 400, "invalid-query"),
        ("GET /v1/runs?agent=A", &json, "", 400, "invalid-query"),
        (
            "GET /v1/runs?created_after=yesterday",
            &json,
            "",
            400,
            "invalid-query",
        ),
        ("GET /v1/runs?tag.A=1", &json, "", 400, "invalid-query"),
        ("GET /v1/runs?limit=0", &json, "", 400, "invalid-query"),
        ("GET /v1/runs?cursor=x", &json, "", 400, "invalid-query"),
        ("GET /v1/tools?cursor=x", &json, "", 400, "invalid-query"),
        ("GET /v1/tools/a?version=0", &json, "", 400, "invalid-query"),
        (
            "GET /v1/dead-letters?reason=because",
            &json,
            "",
            400,
            "invalid-query",
        ),
        (
            "GET /v1/dead-letters?run_id=1",
            &json,
            "",
            400,
            "invalid-query",
        ),
        (
            "GET /v1/dead-letters?cursor=x",
            &json,
            "",
            400,
            "invalid-query",
        ),
        ("PUT /v1/tools/Pay", &json, TOOL, 422, "invalid-tool"),
        ("PUT /v1/tools/pay", &json, "{}", 422, "invalid-tool"),
        ("PUT /v1/agents/a", &json, "[]", 422, "invalid-agent"),
        ("POST /v1/envelopes", &json, "[]", 422, "invalid-envelope"),
        ("POST /v1/envelopes", &json, "7", 422, "invalid-envelope"),
    ] {
        let response = fake.send_with(line, DEV, headers, body);
        let problem = read(&response);
        assert_eq!(response.status, status, "{line} {body} {problem}");
        assert_eq!(
            problem["type"],
            format!("/problems/{kind}"),
            "{line} {body} {problem}"
        );
        let has_errors = problem.get("errors").is_some();
        assert_eq!(
            has_errors,
            status == 422 || kind == "invalid-json",
            "{line} {body}"
        );
    }
    let request = Request {
        origin: None,
        method: "POST".into(),
        path: "/v1/runs".into(),
        query: None,
        headers: vec![("authorization".into(), format!("Bearer {DEV}"))],
        body: Body::TooLarge,
    };
    let response = block_on(respond(&fake, &fake.config, request));
    assert_eq!(response.status, 413);
    assert_eq!(read(&response)["limit_bytes"].to_string(), "1048576");
}

#[test]
fn what_is_too_large_is_refused_before_anything_is_written() {
    let fake = Fake::new();
    let (run_id, letter) = blocked_run(&fake, DEV);
    let most = VALUE_BYTES_MAX;
    // A string of bytes and its quotes, or `{"a":"…"}` around it.
    let value = |bytes: usize| format!("\"{}\"", "é".repeat((bytes - 2) / 2));
    let object = |bytes: usize| format!("{{\"a\":{}}}", value(bytes - 6));
    let runs = fake.runs.borrow().len();
    let cases = [
        (
            "POST /v1/runs".to_owned(),
            format!(r#"{{"agent":"outside","input":{}}}"#, value(most + 2)),
            most,
        ),
        (
            format!("POST /v1/dead-letters/{letter}/resolve"),
            format!(r#"{{"result":{}}}"#, value(most + 2)),
            most,
        ),
        (
            format!("POST /v1/dead-letters/{letter}/redeliver"),
            format!(r#"{{"payload":{}}}"#, object(most + 2)),
            most,
        ),
        (
            "POST /v1/envelopes".to_owned(),
            format!(
                r#"[{{"run_id":"{run_id}","payload":{}}}]"#,
                object(most + 2)
            ),
            most,
        ),
        (
            "PUT /v1/tools/a".to_owned(),
            format!(r#"{{"description":{}}}"#, value(DEFINITION_BYTES_MAX)),
            DEFINITION_BYTES_MAX,
        ),
    ];
    for (line, body, limit) in cases {
        let (status, problem) = fake.dev(&line, &body);
        assert_eq!(status, 413, "{line} {problem}");
        assert_eq!(
            problem["limit_bytes"].to_string(),
            limit.to_string(),
            "{line}"
        );
    }
    assert_eq!(fake.runs.borrow().len(), runs);
    let body = format!(r#"{{"agent":"outside","input":{}}}"#, value(most));
    assert_eq!(fake.dev("POST /v1/runs", &body).0, 202);
    let body = format!(r#"{{"agent":"outside","tags":{{"a":{}}}}}"#, value(262));
    let (status, problem) = fake.dev("POST /v1/runs", &body);
    assert_eq!(
        (status, &problem["errors"][0]["pointer"]),
        (422, &json!("/tags/a"))
    );
}

#[test]
fn a_run_is_started_once_under_a_key() {
    let fake = Fake::new();
    let key = [("idempotency-key", "k")];
    let first = fake.send_with("POST /v1/runs", DEV, &key, SLEEP);
    assert_eq!(first.status, 202);
    let run_id = text(&read(&first)["run_id"]);
    assert_eq!(
        header(&first, "location"),
        Some(format!("/v1/runs/{run_id}").as_str())
    );
    assert_eq!(header(&first, "idempotent-replayed"), None);
    assert!(
        first.body.contains(r#""input":{"n":1E5}"#),
        "{}",
        first.body
    );
    fake.call(&format!("POST /v1/runs/{run_id}/cancel"), DEV, "");
    let same = r#"{ "input": {"n": 100000}, "plan": {"steps": [{"sleep": "P1D", "id": "a"}]} }"#;
    let again = fake.send_with("POST /v1/runs", DEV, &key, same);
    assert_eq!(
        (again.status, &again.body),
        (202, &first.body),
        "order and spelling mean nothing"
    );
    let differs =
        "{\"input\":{\"n\":\"1\"},\"plan\":{\"steps\":[{\"id\":\"a\",\"sleep\":\"P1D\"}]}}";
    for quoted in ["k", "\"k\""] {
        let again = fake.send_with("POST /v1/runs", DEV, &[("idempotency-key", quoted)], SLEEP);
        assert_eq!((again.status, &again.body), (202, &first.body));
        assert_eq!(header(&again, "idempotent-replayed"), Some("true"));
    }
    let other = fake.send_with("POST /v1/runs", DEV, &key, differs);
    assert_eq!(
        (other.status, &read(&other)["type"]),
        (422, &json!("/problems/idempotency-key-reused"))
    );
    let theirs = fake.tenant_key("theirs", "admin");
    let new = fake.send_with("POST /v1/runs", &theirs, &key, SLEEP);
    assert_eq!(header(&new, "idempotent-replayed"), None);
    assert_ne!(text(&read(&new)["run_id"]), run_id);
}

#[test]
fn runs_are_found_and_cancelled() {
    let fake = Fake::new();
    let body = r#"{"plan":{"steps":[{"id":"a","sleep":"P1D"}]},"tags":{"order":"42"}}"#;
    let run_id = text(&fake.dev("POST /v1/runs", body).1["run_id"]);
    sleeping_run(&fake, DEV);
    let (status, listed) = fake.dev("GET /v1/runs?tag.order=42&status=waiting&limit=1", "");
    assert_eq!(
        (status, &listed["items"][0]["run_id"]),
        (200, &json!(run_id)),
        "{listed}"
    );
    let (_, listed) = fake.dev("GET /v1/runs?limit=1", "");
    let next = text(&listed["next_cursor"]);
    let (_, listed) = fake.dev(&format!("GET /v1/runs?limit=1&cursor={next}"), "");
    assert_eq!(
        (&listed["items"][0]["run_id"], &listed["next_cursor"]),
        (&json!(run_id), &Value::Null)
    );
    let cancel = format!("POST /v1/runs/{run_id}/cancel");
    assert_eq!(fake.dev(&cancel, r#"{"commment":""}"#).0, 422);
    let key = [("idempotency-key", "c")];
    let first = fake.send_with(&cancel, DEV, &key, "");
    assert_eq!(
        (first.status, &read(&first)["status"]),
        (200, &json!("cancelled"))
    );
    let again = fake.send_with(&cancel, DEV, &key, "{}");
    assert_eq!((again.status, &again.body), (200, &first.body));
    assert_eq!(header(&again, "idempotent-replayed"), Some("true"));
    assert_eq!(
        fake.send_with(&cancel, DEV, &key, r#"{"comment":"x"}"#)
            .status,
        422
    );
    assert_eq!(fake.dev(&cancel, "").0, 200);
    let (ended, _) = blocked_run(&fake, DEV);
    let done = json!({ "event_type": "plan.failed", "run_id": ended, "step_index": null, "payload": { "message": "no" } });
    assert_eq!(fake.dev("POST /v1/envelopes", &done.to_string()).0, 202);
    let (_, letters) = fake.dev(&format!("GET /v1/dead-letters?run_id={ended}"), "");
    let letter = text(&letters["items"][0]["dead_letter_id"]);
    fake.dev(&format!("POST /v1/dead-letters/{letter}/discard"), "");
    let (status, problem) = fake.dev(&format!("POST /v1/runs/{ended}/cancel"), "");
    assert_eq!(
        (status, &problem["run_status"]),
        (409, &json!("failed")),
        "{problem}"
    );
}

#[test]
fn a_log_is_read_in_pages_and_in_lines() {
    let fake = Fake::new();
    let (run_id, _) = blocked_run(&fake, DEV);
    let path = format!("GET /v1/runs/{run_id}/events");
    let (_, all) = fake.dev(&path, "");
    let entries = all["items"].as_array().unwrap();
    let count = entries.len();
    assert!(count >= 4 && all["next_cursor"].is_null(), "{all}");
    assert_eq!(all["last_seq"].to_string(), count.to_string());
    let mut paged = Vec::new();
    let mut next = "0".to_owned();
    loop {
        let (_, page) = fake.dev(&format!("{path}?limit=3&cursor={next}"), "");
        paged.extend(page["items"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(cursor) => next = cursor.to_owned(),
            None => break,
        }
    }
    assert_eq!(&paged, entries);
    let (_, beyond) = fake.dev(&format!("{path}?after={count}"), "");
    assert_eq!(
        (&beyond["items"], &beyond["next_cursor"]),
        (&json!([]), &Value::Null)
    );
    assert_eq!(fake.dev(&format!("{path}?after=x"), "").0, 400);
    assert_eq!(fake.dev(&format!("{path}?after=1&cursor=1"), "").0, 400);

    let lines = fake.send_with(&path, DEV, &[("accept", "application/x-ndjson")], "");
    assert_eq!(
        header(&lines, "content-type"),
        Some("application/x-ndjson; charset=utf-8")
    );
    assert_eq!(lines.body.lines().count(), count);
    assert_eq!(header(&lines, "link"), None);
    assert!(
        lines
            .body
            .lines()
            .all(|line| serde_json::from_str::<Value>(line).is_ok())
    );
    let some = format!("{path}?after=1&limit=2");
    let some = fake.send_with(&some, DEV, &[("accept", "application/x-ndjson")], "");
    assert_eq!(some.body.lines().next(), lines.body.lines().nth(1));
    let link = format!("</v1/runs/{run_id}/events?after=3>; rel=\"next\"");
    assert_eq!(header(&some, "link"), Some(link.as_str()));
}

#[test]
fn definitions_have_versions() {
    let fake = Fake::new();
    let first = fake.call("PUT /v1/tools/pay", DEV, TOOL);
    assert_eq!(
        (first.status, header(&first, "location")),
        (201, Some("/v1/tools/pay"))
    );
    let stored = read(&first);
    assert_eq!(
        (&stored["name"], stored["version"].to_string()),
        (&json!("pay"), "1".to_owned())
    );
    assert_eq!(stored["http"]["method"], "POST");
    let same = fake.call("PUT /v1/tools/pay", DEV, &TOOL.replace("\":", "\" : "));
    assert_eq!(
        (same.status, read(&same)["version"].to_string()),
        (200, "1".to_owned())
    );
    let with_schema = TOOL.replacen('{', r#"{"parameters":{"multipleOf":0.01},"#, 1);
    let (status, second) = fake.dev("PUT /v1/tools/pay", &with_schema);
    assert_eq!(
        (status, second["version"].to_string()),
        (200, "2".to_owned())
    );
    assert_eq!(fake.dev("GET /v1/tools/pay", "").1, second);
    assert_eq!(fake.dev("GET /v1/tools/pay?version=1", "").1, stored);
    assert_eq!(fake.dev("GET /v1/tools/pay?version=3", "").0, 404);
    assert_eq!(fake.dev("GET /v1/tools", "").1["items"], json!([second]));
    assert_eq!(fake.call("DELETE /v1/tools/pay", DEV, "").status, 204);
    assert_eq!(fake.dev("DELETE /v1/tools/pay", "").0, 404);
    assert_eq!(fake.dev("GET /v1/tools/pay", "").0, 404);
    assert_eq!(fake.dev("GET /v1/tools", "").1["items"], json!([]));

    for (line, body, pointer) in [
        (
            "PUT /v1/tools/a",
            r#"{"http":{"url":"https://a.example"},"parameters":{"type":"strin"}}"#,
            "/parameters",
        ),
        (
            "PUT /v1/tools/a",
            r#"{"http":{"url":"https://a.example"},"result":{"pattern":"("}}"#,
            "/result",
        ),
        (
            "PUT /v1/tools/a",
            r#"{"http":{"url":"https://a.example"},"requires_approval":"yes"}"#,
            "/requires_approval",
        ),
        (
            "PUT /v1/tools/a",
            r#"{"http":{"url":"https://a.example"},"timeout":"PT11M"}"#,
            "/timeout",
        ),
        (
            "PUT /v1/agents/a",
            r#"{"planner":{"kind":"external"},"input_schema":{"type":1}}"#,
            "/input_schema",
        ),
        (
            "PUT /v1/agents/a",
            r#"{"planner":{"kind":"plan","steps":[{"id":"a","approval":{"prompt":"?","schema":{"type":1}}}]}}"#,
            "/planner/steps/0/approval/schema/type",
        ),
    ] {
        let (status, problem) = fake.dev(line, body);
        assert_eq!(status, 422, "{line} {body}");
        let at = text(&problem["errors"][0]["pointer"]);
        assert!(at.starts_with(pointer), "{problem}");
    }
}

#[test]
fn envelopes_are_taken_one_by_one_and_told_of_one_by_one() {
    let fake = Fake::new();
    fake.call("PUT /v1/tools/pay", DEV, TOOL);
    fake.call(
        "PUT /v1/agents/outside",
        DEV,
        r#"{"planner":{"kind":"external"},"tools":["pay"]}"#,
    );
    let run_id = text(&fake.dev("POST /v1/runs", r#"{"agent":"outside"}"#).1["run_id"]);
    let many = format!(
        "[{},{},7,{}]",
        requested(&run_id, 0, "pay"),
        requested(&run_id, 1, "pay"),
        requested(&format!("run_{UUID}"), 0, "pay")
    );
    let key = [("idempotency-key", "e")];
    let first = fake.send_with("POST /v1/envelopes", DEV, &key, &many);
    assert_eq!(first.status, 202, "{}", first.body);
    let answer = read(&first);
    assert_eq!(
        crate::schema::validate("accepted-envelopes", &answer),
        Ok(())
    );
    assert_eq!(answer["accepted"].as_array().unwrap().len(), 2);
    assert_eq!(answer["accepted"][1]["step_index"].to_string(), "1");
    let index = |at: usize| answer["rejected"][at]["index"].to_string();
    assert_eq!((index(0), index(1)), ("2".to_owned(), "3".to_owned()));
    let again = fake.send_with("POST /v1/envelopes", DEV, &key, &many);
    assert_eq!((again.status, &again.body), (202, &first.body));
    assert_eq!(header(&again, "idempotent-replayed"), Some("true"));
    let letters = fake.dev("GET /v1/dead-letters?status=open", "").1;
    assert_eq!(letters["items"].as_array().unwrap().len(), 2, "{letters}");

    let bad = requested(&run_id, 2, "pay").replace("amount", "amount\":1,\"amount2");
    let (status, problem) = fake.dev(
        "POST /v1/envelopes",
        &format!("[{}]", bad.replace("\"arguments\"", "\"args\"")),
    );
    assert_eq!(status, 422);
    assert!(
        text(&problem["errors"][0]["pointer"]).starts_with("/0/payload"),
        "{problem}"
    );
    assert!(problem["rejected"][0]["dead_letter_id"].is_string());
    let hundred_one = format!("[{}]", vec!["{}"; 101].join(","));
    assert_eq!(fake.dev("POST /v1/envelopes", &hundred_one).0, 422);
}

#[test]
fn a_letter_of_a_run_is_settled_once() {
    let fake = Fake::new();
    let (run_id, id) = blocked_run(&fake, DEV);
    let path = format!("/v1/dead-letters/{id}");
    let (status, letter) = fake.dev(&format!("GET {path}"), "");
    assert_eq!(
        (status, &letter["reason"], &letter["status"]),
        (200, &json!("unknown_tool"), &json!("open"))
    );
    let (_, by_run) = fake.dev(
        &format!("GET /v1/dead-letters?run_id={run_id}&status=open"),
        "",
    );
    assert_eq!(by_run["items"], json!([letter]));
    let none = format!("GET /v1/dead-letters?run_id={run_id}&reason=invalid_result");
    assert_eq!(fake.dev(&none, "").1["items"], json!([]));
    assert_eq!(
        fake.dev("GET /v1/dead-letters?reason=unknown_tool", "").1["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );

    let redeliver = format!("POST {path}/redeliver");
    let (status, problem) = fake.dev(&redeliver, "");
    assert_eq!(
        (status, &problem["type"]),
        (422, &json!("/problems/invalid-settlement")),
        "{problem}"
    );
    let (status, problem) = fake.dev(&redeliver, r#"{"payload":{"tool":"pay"}}"#);
    assert_eq!(
        (status, &problem["errors"][0]["pointer"]),
        (422, &json!("/payload/arguments"))
    );
    fake.call("PUT /v1/tools/pay", DEV, TOOL);
    let key = [("idempotency-key", "r")];
    let first = fake.send_with(&redeliver, DEV, &key, "");
    assert_eq!(
        (first.status, &read(&first)["status"]),
        (200, &json!("redelivered")),
        "{}",
        first.body
    );
    let again = fake.send_with(&redeliver, DEV, &key, "{}");
    assert_eq!(
        (again.status, header(&again, "idempotent-replayed")),
        (200, Some("true"))
    );
    assert_eq!(again.body, first.body);
    let (status, problem) = fake.dev(&format!("POST {path}/resolve"), r#"{"result":1}"#);
    assert_eq!(
        (status, &problem["dead_letter_status"]),
        (409, &json!("redelivered"))
    );
    assert!(problem["settled_at"].is_string());

    let (_, id) = blocked_run(&fake, &fake.tenant_key("acme", "admin"));
    assert_eq!(
        fake.dev(&format!("POST /v1/dead-letters/{id}/discard"), "")
            .0,
        404
    );
}

#[test]
fn a_stray_letter_is_redelivered_only_when_a_run_takes_it() {
    let fake = Fake::new();
    fake.call("PUT /v1/agents/outside", DEV, EXTERNAL);
    let run_id = text(&fake.dev("POST /v1/runs", r#"{"agent":"outside"}"#).1["run_id"]);
    let stray = |body: &str| {
        let (status, problem) = fake.dev("POST /v1/envelopes", body);
        assert_eq!(status, 422);
        text(&problem["rejected"][0]["dead_letter_id"])
    };
    let id = stray(&requested(&run_id, 0, "pay").replace("arguments", "args"));
    let path = format!("/v1/dead-letters/{id}");
    let (_, listed) = fake.dev(&format!("GET /v1/dead-letters?run_id={run_id}"), "");
    assert_eq!(listed["items"][0]["dead_letter_id"], json!(id));
    assert_eq!(
        fake.dev(&format!("POST {path}/resolve"), r#"{"result":1}"#)
            .1["type"],
        "/problems/no-step"
    );
    let redeliver = format!("POST {path}/redeliver");
    for wrong in ["", r#"{"payload":{"tool":"pay"}}"#] {
        let (status, problem) = fake.dev(&redeliver, wrong);
        assert_eq!(
            (status, &problem["errors"][0]["pointer"]),
            (422, &json!("/payload/arguments"))
        );
    }
    let open = fake.dev("GET /v1/dead-letters?status=open", "").1;
    assert_eq!(
        open["items"].as_array().unwrap().len(),
        1,
        "refused again, it is still one letter"
    );
    let repaired = r#"{"payload":{"tool":"pay","arguments":{}}}"#;
    let key = [("idempotency-key", "r")];
    let first = fake.send_with(&redeliver, DEV, &key, repaired);
    assert_eq!(
        (first.status, &read(&first)["status"]),
        (200, &json!("redelivered")),
        "{}",
        first.body
    );
    let again = fake.send_with(&redeliver, DEV, &key, repaired);
    assert_eq!((again.status, &again.body), (200, &first.body));
    assert_eq!(header(&again, "idempotent-replayed"), Some("true"));
    assert_eq!(fake.dev(&redeliver, repaired).0, 409);

    let whole = stray("\"no envelope\"");
    let redeliver = format!("POST /v1/dead-letters/{whole}/redeliver");
    let (status, problem) = fake.dev(&redeliver, repaired);
    assert_eq!(
        (status, &problem["errors"][0]["pointer"]),
        (422, &json!("/payload"))
    );
    let envelope = requested(&run_id, 7, "pay");
    let (status, problem) = fake.dev(&redeliver, &format!(r#"{{"payload":{envelope}}}"#));
    assert_eq!(
        (status, &problem["errors"][0]["pointer"]),
        (422, &json!("/payload/step_index"))
    );
    let envelope = requested(&run_id, 0, "pay").replace(r#"{"amount":5}"#, "{}");
    let (status, letter) = fake.dev(&redeliver, &format!(r#"{{"payload":{envelope}}}"#));
    assert_eq!(
        (status, &letter["status"]),
        (200, &json!("redelivered")),
        "{letter}"
    );

    let last = stray("{}");
    let discard = format!("POST /v1/dead-letters/{last}/discard");
    assert_eq!(
        fake.dev(&discard, r#"{"comment":"spam"}"#).1["status"],
        "discarded"
    );
    let (status, problem) = fake.dev(&discard, "");
    assert_eq!(
        (status, &problem["dead_letter_status"]),
        (409, &json!("discarded"))
    );
}

#[test]
fn letters_of_a_run_are_paged_newest_first() {
    let fake = Fake::new();
    let (run_id, first) = blocked_run(&fake, DEV);
    for step in 1..4 {
        assert_eq!(
            fake.dev("POST /v1/envelopes", &requested(&run_id, step, "pay"))
                .0,
            202
        );
    }
    fake.dev("POST /v1/envelopes", &requested(&run_id, 9, "pay"));
    let path = format!("GET /v1/dead-letters?run_id={run_id}&limit=2");
    let (_, page) = fake.dev(&path, "");
    assert_eq!(page["items"][0]["reason"], "invalid_envelope");
    let mut ids: Vec<String> = Vec::new();
    let mut next = String::new();
    loop {
        let line = if next.is_empty() {
            path.clone()
        } else {
            format!("{path}&cursor={next}")
        };
        let (_, page) = fake.dev(&line, "");
        ids.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|l| text(&l["dead_letter_id"])),
        );
        match page["next_cursor"].as_str() {
            Some(cursor) => next = cursor.to_owned(),
            None => break,
        }
    }
    assert_eq!(ids.len(), 5);
    assert!(ids.is_sorted_by(|a, b| a > b));
    assert_eq!(ids.last(), Some(&first));
}

#[test]
fn tenants_and_keys_are_made_once() {
    let fake = Fake::new();
    let key = [("idempotency-key", "t")];
    let make = |headers: &[(&str, &str)], body: &str| {
        fake.send_with("POST /v1/tenants", ADMIN, headers, body)
    };
    let first = make(&key, r#"{"tenant_id":"acme"}"#);
    assert_eq!(
        (first.status, first.body.as_str()),
        (201, r#"{"tenant_id":"acme"}"#)
    );
    let again = make(&key, r#"{ "tenant_id": "acme" }"#);
    assert_eq!(
        (again.status, header(&again, "idempotent-replayed")),
        (201, Some("true"))
    );
    assert_eq!(make(&key, r#"{"tenant_id":"b"}"#).status, 422);
    assert_eq!(
        read(&make(&[], r#"{"tenant_id":"acme"}"#))["type"],
        "/problems/tenant-exists"
    );
    for wrong in [
        "{}",
        r#"{"tenant_id":"Acme"}"#,
        r#"{"tenant_id":"_directory"}"#,
        r#"{"tenant_id":"a/b"}"#,
    ] {
        assert_eq!(make(&[], wrong).status, 422, "{wrong}");
    }

    let keys = "POST /v1/tenants/acme/keys";
    let body = r#"{"name":"ci","role":"reader"}"#;
    let first = fake.send_with(keys, ADMIN, &key, body);
    assert_eq!(first.status, 201);
    let made = read(&first);
    assert_eq!(
        (&made["name"], &made["role"]),
        (&json!("ci"), &json!("reader"))
    );
    let secret = text(&made["key"]);
    assert_eq!(fake.call("GET /v1/runs", &secret, "").status, 200);
    let again = fake.send_with(keys, ADMIN, &key, body);
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert_eq!(header(&again, "idempotent-replayed"), Some("true"));
    let other = fake.send_with(keys, ADMIN, &key, r#"{"name":"ci"}"#);
    assert_eq!(other.status, 422);
    for db in fake.tenants.borrow().values() {
        let dump = db.dump();
        assert!(
            !dump.contains(secret.rsplit('.').next().unwrap()),
            "a secret is stored"
        );
    }
    let tampered = format!("{}A", &secret[..secret.len() - 1]);
    let tampered = if tampered == secret {
        secret.replace("dmk_acme", "dmk_b")
    } else {
        tampered
    };
    assert_eq!(fake.call("GET /v1/runs", &tampered, "").status, 401);

    assert_eq!(
        read(&fake.call(keys, ADMIN, r#"{"name":"ci"}"#))["role"],
        "developer"
    );
    let (status, pointer) = {
        let response = fake.call(keys, ADMIN, r#"{"name":"ci","role":"root"}"#);
        (
            response.status,
            read(&response)["errors"][0]["pointer"].clone(),
        )
    };
    assert_eq!((status, pointer), (422, json!("/role")));
    for tenant in ["missing", "_directory", "A"] {
        let line = format!("POST /v1/tenants/{tenant}/keys");
        assert_eq!(fake.call(&line, ADMIN, body).status, 404, "{tenant}");
        assert_eq!(
            fake.send_with(&line, ADMIN, &key, body).status,
            404,
            "{tenant}"
        );
    }
    assert_eq!(
        fake.call(
            &format!("DELETE /v1/tenants/acme/keys/key_{UUID}"),
            ADMIN,
            ""
        )
        .status,
        404
    );

    let mut fake = fake;
    fake.config.admin_token = Some("another".into());
    let rotated = fake.send_with(keys, "another", &key, body);
    assert_eq!(read(&rotated)["type"], "/problems/key-not-shown");
}

#[test]
fn a_tenant_that_was_half_made_is_made() {
    let fake = Fake::new();
    let acme = crate::words::TenantId::parse("acme").unwrap();
    let create = crate::ports::TenantCall::Create {
        now: crate::words::Timestamp::EPOCH,
    };
    block_on(crate::ports::World::tenant(&fake, &acme, &create)).unwrap();
    let line = "POST /v1/tenants";
    assert_eq!(
        fake.call(line, ADMIN, r#"{"tenant_id":"acme"}"#).status,
        201
    );
    assert_eq!(
        fake.call(line, ADMIN, r#"{"tenant_id":"acme"}"#).status,
        409
    );
}

#[test]
fn the_tenant_of_a_local_server_comes_to_be_when_it_is_used() {
    let fake = Fake::new();
    assert_eq!(fake.dev("GET /v1/tools/a", "").0, 404);
    let before = fake.tenant_calls.get();
    assert_eq!(fake.dev("GET /v1/runs", "").0, 200);
    assert_eq!(
        fake.tenant_calls.get(),
        before + 1,
        "once made, it costs nothing more"
    );
    let fresh = Fake::new();
    sleeping_run(&fresh, DEV);
}

#[test]
fn trouble_of_ours_is_told_apart_and_not_kept() {
    let fake = Fake::new();
    let (run_id, _) = blocked_run(&fake, DEV);
    let key = [("idempotency-key", "x")];
    let body = requested(&run_id, 1, "pay");
    fake.is_down.set(true);
    let down = fake.send_with("POST /v1/envelopes", DEV, &key, &body);
    assert_eq!(
        (down.status, header(&down, "retry-after")),
        (503, Some("1"))
    );
    assert!(!down.body.contains("it is down"));
    assert!(
        fake.logged
            .borrow()
            .iter()
            .any(|line| line.contains("it is down"))
    );
    assert_eq!(fake.call("GET /healthz", "", "").status, 200);
    fake.is_down.set(false);
    assert_eq!(
        fake.send_with("POST /v1/envelopes", DEV, &key, &body)
            .status,
        202
    );
}

#[test]
fn documents_are_for_everyone() {
    let fake = Fake::new();
    let health = fake.call("GET /healthz", "", "");
    assert_eq!(read(&health), json!({ "status": "ok", "version": "0.0.0" }));
    let head = fake.call("HEAD /healthz", "", "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let openapi = fake.call("GET /openapi.json", "", "");
    assert!(
        header(&openapi, "cache-control")
            .unwrap()
            .contains("max-age")
    );
    let schema = fake.call("GET /schemas/tool.requested.json", "", "");
    assert_eq!(
        header(&schema, "content-type"),
        Some("application/schema+json; charset=utf-8")
    );
    assert_eq!(fake.call("GET /schemas/nothing.json", "", "").status, 404);
    for kind in super::problem::ALL {
        let page = read(&fake.call(&format!("GET /problems/{}", kind.name), "", ""));
        assert_eq!(page["title"], kind.title);
    }
    assert_eq!(fake.call("GET /problems/nothing", "", "").status, 404);
    let traced = [(
        "traceparent",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    )];
    let traced = fake.send_with("GET /nothing", "", &traced, "");
    let span = header(&traced, "traceparent").unwrap();
    assert!(span.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && span.ends_with("-01"));
}

#[test]
fn the_routes_are_those_of_the_openapi_document() {
    let document: Value = serde_json::from_str(&crate::schema::openapi()).unwrap();
    let paths = document["paths"].as_object().unwrap();
    for route in ROUTES {
        let described = paths
            .get(route.path)
            .and_then(|p| p.get(route.method.to_lowercase()));
        assert!(
            described.is_some(),
            "{} {} is not described",
            route.method,
            route.path
        );
    }
    for (path, operations) in paths {
        for method in operations
            .as_object()
            .unwrap()
            .keys()
            .filter(|name| *name != "parameters")
        {
            let is_here =
                |r: &&super::routes::Route| r.path == path && r.method.eq_ignore_ascii_case(method);
            assert!(
                ROUTES.iter().any(|r| is_here(&r)),
                "{method} {path} leads nowhere"
            );
        }
    }
}
