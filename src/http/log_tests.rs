//! A run's log as its clients read it: backwards, and in pages of large entries.

use serde_json::json;

use crate::flow::home::PAGE_BYTES_MAX;
use crate::json::{self, Value};

use super::testing::{DEV, Fake, header, read};

const LINES: (&str, &str) = ("accept", "application/x-ndjson");
const TOOL: &str = r#"{"http":{"method":"POST","url":"https://pay.example/charges"}}"#;

fn start(fake: &Fake, body: &Value) -> String {
    let (status, run) = fake.dev("POST /v1/runs", &body.to_string());
    assert_eq!(status, 202, "{run}");
    run["run_id"].as_str().unwrap().to_owned()
}

/// A run that an external planner feeds.
fn fed_run(fake: &Fake) -> String {
    fake.call("PUT /v1/tools/pay", DEV, TOOL);
    let agent = json!({ "tools": ["pay"], "planner": { "kind": "external" }, "limits": { "max_steps": 10_000 } });
    fake.call("PUT /v1/agents/fed", DEV, &agent.to_string());
    start(fake, &json!({ "agent": "fed" }))
}

/// Hands in intents, each with `text` as its argument: an entry each.
fn feed(fake: &Fake, run_id: &str, steps: std::ops::Range<u32>, text: &str) {
    for step in steps {
        let envelope = json!({
            "event_type": "tool.requested", "run_id": run_id, "step_index": step,
            "payload": { "tool": "pay", "arguments": { "text": text } }
        });
        let (status, taken) = fake.dev("POST /v1/envelopes", &envelope.to_string());
        assert_eq!(status, 202, "{taken}");
    }
}

/// The run's whole log, oldest first.
fn whole(fake: &Fake, run_id: &str) -> Vec<Value> {
    walk(fake, &format!("GET /v1/runs/{run_id}/events?limit=200")).concat()
}

/// The pages of a list, each at least one item.
fn walk(fake: &Fake, line: &str) -> Vec<Vec<Value>> {
    let mut pages = Vec::new();
    let mut cursor = String::new();
    loop {
        let response = fake.call(&format!("{line}{cursor}"), DEV, "");
        assert_eq!(response.status, 200, "{}", response.body);
        let page = read(&response);
        let items = page["items"].as_array().unwrap().clone();
        let bytes: usize = items.iter().map(json::bytes_len).sum();
        assert!(bytes <= PAGE_BYTES_MAX || items.len() == 1, "{bytes} bytes");
        assert!(!items.is_empty());
        pages.push(items);
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return pages,
        }
    }
}

fn reversed(mut entries: Vec<Value>) -> Vec<Value> {
    entries.reverse();
    entries
}

#[test]
fn a_log_is_walked_back_without_gap_or_repeat() {
    let fake = Fake::new();
    // One row of many entries, and rows of one.
    let emits: Vec<Value> = (0..40)
        .map(|n| json!({ "id": format!("e{n}"), "emit": { "type": "x", "data": n } }))
        .chain([json!({ "id": "nap", "sleep": "P1D" })])
        .collect();
    let of_a_plan = start(&fake, &json!({ "plan": { "steps": emits } }));
    let fed = fed_run(&fake);
    feed(&fake, &fed, 0..30, "a");
    for run_id in [of_a_plan, fed] {
        let all = whole(&fake, &run_id);
        assert!(all.len() > 30);
        let path = format!("GET /v1/runs/{run_id}/events");
        for limit in [1, 7, 50, 200] {
            let back = walk(&fake, &format!("{path}?order=desc&limit={limit}"));
            assert!(back.iter().rev().skip(1).all(|page| page.len() == limit));
            assert_eq!(back.concat(), reversed(all.clone()), "{limit}");
            let part = walk(&fake, &format!("{path}?order=desc&after=5&limit={limit}"));
            assert_eq!(part.concat(), reversed(all[5..].to_vec()), "{limit}");
            let forth = walk(&fake, &format!("{path}?order=asc&limit={limit}"));
            assert_eq!(forth.concat(), all);
        }
        let none = read(&fake.call(&format!("{path}?order=desc&after=9999"), DEV, ""));
        assert_eq!(
            (&none["items"], &none["next_cursor"]),
            (&json!([]), &Value::Null)
        );
        let beyond = read(&fake.call(&format!("{path}?order=desc&cursor=before.1"), DEV, ""));
        assert_eq!(beyond["items"], json!([]));
    }
}

#[test]
fn what_is_added_meanwhile_moves_no_page_of_a_walk_back() {
    let fake = Fake::new();
    let run_id = fed_run(&fake);
    feed(&fake, &run_id, 0..10, "a");
    let before = whole(&fake, &run_id);
    let path = format!("GET /v1/runs/{run_id}/events?order=desc&limit=4");
    let first = read(&fake.call(&path, DEV, ""));
    feed(&fake, &run_id, 10..20, "a");
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = read(&fake.call(&format!("{path}&cursor={cursor}"), DEV, ""));
    let seen = [&first, &second].map(|page| page["items"].as_array().unwrap().clone());
    assert_eq!(seen.concat(), reversed(before)[..8].to_vec());
}

#[test]
fn an_order_that_is_none_and_a_cursor_of_the_other_order_are_named() {
    let fake = Fake::new();
    let path = format!("GET /v1/runs/{}/events", fed_run(&fake));
    for (query, parameter) in [
        ("order=newest", "order"),
        ("order=", "order"),
        ("order=DESC", "order"),
        ("order=desc&order=asc", "order"),
        ("order=desc&cursor=3", "cursor"),
        ("order=desc&cursor=before.", "cursor"),
        ("order=asc&cursor=before.3", "cursor"),
        ("cursor=before.3", "cursor"),
        ("order=desc&after=x", "after"),
    ] {
        for form in [("accept", "*/*"), LINES] {
            let response = fake.send_with(&format!("{path}?{query}"), DEV, &[form], "");
            assert_eq!(response.status, 400, "{query}");
            assert_eq!(read(&response)["parameter"], parameter, "{query}");
        }
    }
}

#[test]
fn lines_go_backwards_as_well() {
    let fake = Fake::new();
    let run_id = fed_run(&fake);
    feed(&fake, &run_id, 0..10, "a");
    let all = whole(&fake, &run_id);
    let path = format!("GET /v1/runs/{run_id}/events?order=desc&after=2&limit=3");
    let lines = fake.send_with(&path, DEV, &[LINES], "");
    let got: Vec<Value> = lines
        .body
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(got, reversed(all[all.len() - 3..].to_vec()));
    let next = all.len() - 2;
    let link =
        format!("</v1/runs/{run_id}/events?order=desc&after=2&cursor=before.{next}>; rel=\"next\"");
    assert_eq!(header(&lines, "link"), Some(link.as_str()));
}

#[test]
fn a_page_of_large_entries_is_short_and_never_empty() {
    let fake = Fake::new();
    let run_id = fed_run(&fake);
    feed(&fake, &run_id, 0..25, &"x".repeat(200_000));
    feed(&fake, &run_id, 25..27, &"y".repeat(520_000));
    feed(&fake, &run_id, 27..30, "z");
    let all = whole(&fake, &run_id);
    assert_eq!(
        all.last().unwrap()["seq"].to_string(),
        all.len().to_string()
    );
    let path = format!("GET /v1/runs/{run_id}/events?limit=200");
    assert!(walk(&fake, &path).len() > 5);
    let back = walk(&fake, &format!("{path}&order=desc"));
    assert!(back.len() > 5);
    assert_eq!(back.concat(), reversed(all.clone()));

    let lines = fake.send_with(path.trim_end_matches("?limit=200"), DEV, &[LINES], "");
    let bytes_max = 4_194_304 + PAGE_BYTES_MAX;
    assert!(lines.body.len() <= bytes_max, "{} bytes", lines.body.len());
    assert!(header(&lines, "link").is_some());
}
