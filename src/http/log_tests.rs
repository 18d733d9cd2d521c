//! A run's log as its clients read it: backwards, in pages of large entries, and as it grows.

use serde_json::json;

use crate::decide::{Claim, ClaimReply, Report, Settle};
use crate::flow::home::PAGE_BYTES_MAX;
use crate::json::{self, Json, Value};
use crate::ports::{RunCall, RunOp, RunResult, World};
use crate::words::{RunId, TenantId};

use super::Response;
use super::event_stream::{Broken, EventStream};
use super::testing::{DEV, Fake, block_on, header, read};

const STREAM: (&str, &str) = ("accept", "text/event-stream");
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

fn cancel(fake: &Fake, run_id: &str) {
    assert_eq!(
        fake.dev(&format!("POST /v1/runs/{run_id}/cancel"), "").0,
        200
    );
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
        for form in [("accept", "*/*"), LINES, STREAM] {
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
    let bytes = lines.body.len();
    assert!((3_000_000..=4_194_304).contains(&bytes), "{bytes} bytes");
    assert!(header(&lines, "link").is_some());
}

/// A frame of an event stream, as a client reads it.
#[derive(Debug, PartialEq)]
struct Frame {
    id: String,
    event: String,
    data: String,
}

/// Reads a stream's text by the rules of WHATWG HTML, section 9.2.6.
fn frames(text: &str) -> Vec<Frame> {
    assert!(text.ends_with("\n\n"), "a frame is cut off: {text}");
    let mut frames = Vec::new();
    for block in text.split("\n\n") {
        let field = |wanted: &str| {
            let lines = block.lines().filter(|line| !line.starts_with(':'));
            let mut fields = lines.filter_map(|line| line.split_once(": "));
            fields
                .find(|(name, _)| *name == wanted)
                .map(|(_, value)| value.to_owned())
        };
        if let Some(data) = field("data") {
            let (id, event) = (field("id").unwrap(), field("event").unwrap());
            frames.push(Frame { id, event, data });
        }
    }
    frames
}

fn ids(text: &str) -> Vec<u64> {
    frames(text)
        .iter()
        .map(|frame| frame.id.parse().unwrap())
        .collect()
}

fn stream(fake: &Fake, run_id: &str, more: &[(&str, &str)]) -> Response {
    let path = format!("GET /v1/runs/{run_id}/events");
    fake.send_with(&path, DEV, &[&[STREAM], more].concat(), "")
}

fn next(fake: &Fake, stream: &mut EventStream) -> Result<Option<String>, Broken> {
    block_on(stream.next(fake))
}

/// The next piece of a stream that goes on.
fn piece(fake: &Fake, stream: &mut EventStream) -> String {
    next(fake, stream).unwrap().unwrap()
}

#[test]
fn a_frame_holds_an_entry_as_the_list_does() {
    let fake = Fake::new();
    let run_id = fed_run(&fake);
    feed(&fake, &run_id, 0..1, "a\r\n\u{2028}b");
    let response = stream(&fake, &run_id, &[]);
    assert_eq!(response.status, 200);
    assert_eq!(
        header(&response, "content-type"),
        Some("text/event-stream; charset=utf-8")
    );
    assert_eq!(header(&response, "cache-control"), Some("no-store"));
    assert!(
        response.body.starts_with("retry: 1000\n\n"),
        "{}",
        response.body
    );
    assert!(response.stream.is_some(), "the run goes on");
    let frames = frames(&response.body);
    let list = fake.call(&format!("GET /v1/runs/{run_id}/events"), DEV, "");
    let data: Vec<&str> = frames.iter().map(|frame| frame.data.as_str()).collect();
    assert!(
        list.body
            .starts_with(&format!(r#"{{"items":[{}],"#, data.join(","))),
        "{}",
        list.body
    );
    for frame in frames {
        let entry: Value = serde_json::from_str(&frame.data).unwrap();
        assert_eq!(entry["seq"].to_string(), frame.id);
        assert_eq!(entry["event_type"], json!(frame.event));
    }
}

#[test]
fn a_stream_begins_after_the_entry_that_was_seen_last() {
    let fake = Fake::new();
    let run_id = fed_run(&fake);
    feed(&fake, &run_id, 0..6, "a");
    let last = whole(&fake, &run_id).len() as u64;
    let path = format!("GET /v1/runs/{run_id}/events");
    for (query, id, first) in [
        ("", None, 1),
        ("?after=2", None, 3),
        ("?cursor=2&order=asc", None, 3),
        ("?after=2", Some("4"), 5),
        ("", Some("0"), 1),
        ("?after=2", Some("0"), 1),
    ] {
        let more: Vec<_> = id.map(|id| ("last-event-id", id)).into_iter().collect();
        let line = format!("{path}{query}");
        let response = fake.send_with(&line, DEV, &[&[STREAM], more.as_slice()].concat(), "");
        assert_eq!(
            ids(&response.body),
            (first..=last).collect::<Vec<_>>(),
            "{query} {id:?}"
        );
    }
    for wrong in ["", "x", "-1", "1.5", "+1", "1 2", "0x1", "évt"] {
        let response = stream(&fake, &run_id, &[("last-event-id", wrong)]);
        assert_eq!(response.status, 400, "{wrong:?}");
        assert_eq!(read(&response)["header"], "Last-Event-ID");
    }
    let twice = [("last-event-id", "1"), ("last-event-id", "1")];
    assert_eq!(stream(&fake, &run_id, &twice).status, 400);
}

#[test]
fn who_may_not_see_a_stream_is_told_so_before_it_begins() {
    let fake = Fake::new();
    let run_id = fed_run(&fake);
    let other = fake.tenant_key("other", "reader");
    let path = format!("/v1/runs/{run_id}/events");
    for (line, key, status) in [
        (format!("GET {path}"), "", 401),
        (format!("GET {path}"), "wrong", 401),
        (format!("GET {path}"), other.as_str(), 404),
        ("GET /v1/runs/run_x/events".to_owned(), DEV, 404),
        (
            format!("GET /v1/runs/run_{}/events", "0".repeat(32)),
            DEV,
            404,
        ),
        (format!("GET {path}?order=desc"), DEV, 400),
        (format!("GET {path}?limit=5"), DEV, 400),
        (format!("GET {path}?after=x"), DEV, 400),
        (format!("GET {path}?staus=x"), DEV, 400),
        (format!("POST {path}"), DEV, 405),
    ] {
        let response = fake.send_with(&line, key, &[STREAM], "");
        assert_eq!(response.status, status, "{line} {}", response.body);
        assert!(response.stream.is_none());
    }
    let head = fake.send_with(&format!("HEAD {path}"), DEV, &[STREAM], "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(
        header(&head, "content-type"),
        Some("text/event-stream; charset=utf-8")
    );
    assert!(head.stream.is_none());
    fake.is_down.set(true);
    assert_eq!(stream(&fake, &run_id, &[]).status, 503);
}

#[test]
fn a_stream_ends_with_its_run_and_is_not_begun_again() {
    let fake = Fake::new();
    let run_id = fed_run(&fake);
    let begun = stream(&fake, &run_id, &[]);
    let mut seen = ids(&begun.body);
    let mut live = begun.stream.unwrap();
    feed(&fake, &run_id, 0..3, "a");
    seen.extend(ids(&piece(&fake, &mut live)));
    cancel(&fake, &run_id);
    let end = piece(&fake, &mut live);
    seen.extend(ids(&end));
    assert_eq!(frames(&end).last().unwrap().event, "run.cancelled");
    assert_eq!(next(&fake, &mut live), Ok(None));
    assert_eq!(next(&fake, &mut live), Ok(None));
    let last = whole(&fake, &run_id).len() as u64;
    assert_eq!(seen, (1..=last).collect::<Vec<_>>());

    let again = stream(&fake, &run_id, &[]);
    assert_eq!(ids(&again.body), seen);
    assert!(again.stream.is_none(), "all is said");
    let rest = stream(
        &fake,
        &run_id,
        &[("last-event-id", &(last - 1).to_string())],
    );
    assert_eq!(ids(&rest.body), [last]);
    for seen in [last, last + 1] {
        let done = stream(&fake, &run_id, &[("last-event-id", &seen.to_string())]);
        assert_eq!((done.status, done.body.as_str()), (204, ""));
        assert!(done.stream.is_none());
    }
}

#[test]
fn a_stream_of_a_run_that_is_called_off_waits_for_its_call_under_way() {
    let fake = Fake::new();
    fake.call("PUT /v1/tools/pay", DEV, TOOL);
    let steps = json!([{ "id": "a", "tool": "pay", "arguments": {} }]);
    let run_id = start(&fake, &json!({ "plan": { "steps": steps } }));
    let requested = whole(&fake, &run_id).pop().unwrap();
    let of_run = |op| {
        let (tenant_id, run_id) = (
            TenantId::parse("dev").unwrap(),
            RunId::parse(&run_id).unwrap(),
        );
        let answer = block_on(fake.run(&run_id, &RunCall { tenant_id, op })).unwrap();
        answer.result.unwrap()
    };
    let claimed = of_run(RunOp::Claim(Claim {
        step_index: 0,
        idempotency_key: requested["idempotency_key"].as_str().unwrap().to_owned(),
    }));
    let RunResult::Claim(ClaimReply::Granted(assignment)) = claimed else {
        panic!("{claimed:?}");
    };
    let mut live = stream(&fake, &run_id, &[]).stream.unwrap();
    cancel(&fake, &run_id);
    assert_eq!(
        fake.dev(&format!("GET /v1/runs/{run_id}"), "").1["status"],
        "cancelled"
    );
    assert_eq!(
        frames(&piece(&fake, &mut live)).last().unwrap().event,
        "run.cancel_requested"
    );
    fake.slept_ms.borrow_mut().clear();
    for _ in 0..6 {
        assert_eq!(piece(&fake, &mut live), ":\n\n");
    }
    assert_eq!(fake.slept_ms.borrow().last(), Some(&1_000));
    of_run(RunOp::Settle(Settle {
        step_index: 0,
        token: assignment.token,
        report: Report::Completed {
            result: Json::new(json!({})),
            status_code: Some(200),
        },
        duplicates_suppressed: 0,
        wants_next: false,
    }));
    let end = piece(&fake, &mut live);
    let events: Vec<_> = frames(&end).into_iter().map(|frame| frame.event).collect();
    assert_eq!(events, ["tool.completed", "run.cancelled"]);
    assert_eq!(next(&fake, &mut live), Ok(None));
}

#[test]
fn a_stream_looks_often_while_the_run_moves_and_seldom_while_it_rests() {
    let fake = Fake::new();
    let moving = fed_run(&fake);
    feed(&fake, &moving, 0..1, "a");
    let resting = start(
        &fake,
        &json!({ "plan": { "steps": [{ "id": "a", "sleep": "P1D" }] } }),
    );
    for (run_id, expected) in [
        (
            &moving,
            [
                50, 100, 200, 400, 800, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000,
            ],
        ),
        (
            &resting,
            [
                50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 14_000, 14_000,
            ],
        ),
    ] {
        let mut live = stream(&fake, run_id, &[]).stream.unwrap();
        fake.slept_ms.borrow_mut().clear();
        for _ in expected {
            assert_eq!(piece(&fake, &mut live), ":\n\n", "a sign of life");
        }
        assert_eq!(*fake.slept_ms.borrow(), expected);
        assert!(expected.into_iter().all(|pause_ms| pause_ms < 15_000));
        cancel(&fake, run_id);
        assert_eq!(
            frames(&piece(&fake, &mut live)).last().unwrap().event,
            "run.cancelled"
        );
    }
    let run_id = fed_run(&fake);
    let mut live = stream(&fake, &run_id, &[]).stream.unwrap();
    for _ in 0..6 {
        piece(&fake, &mut live);
    }
    feed(&fake, &run_id, 0..1, "a");
    piece(&fake, &mut live);
    fake.slept_ms.borrow_mut().clear();
    piece(&fake, &mut live);
    assert_eq!(
        *fake.slept_ms.borrow(),
        [50],
        "what came shows that more may come"
    );
}

#[test]
fn a_stream_that_has_catching_up_to_do_gives_a_page_at_a_time_without_a_pause() {
    let fake = Fake::new();
    let run_id = fed_run(&fake);
    feed(&fake, &run_id, 0..450, "a");
    let last = whole(&fake, &run_id).len() as u64;
    let begun = stream(&fake, &run_id, &[]);
    let mut seen = ids(&begun.body);
    assert_eq!(seen.len(), 200);
    let mut live = begun.stream.unwrap();
    while (seen.len() as u64) < last {
        let more = ids(&piece(&fake, &mut live));
        assert!(more.len() <= 200);
        seen.extend(more);
    }
    assert_eq!(seen, (1..=last).collect::<Vec<_>>());
    assert_eq!(*fake.slept_ms.borrow(), Vec::<i64>::new());
}

#[test]
fn no_stream_is_held_for_ever() {
    let fake = Fake::new();
    let resting = start(
        &fake,
        &json!({ "plan": { "steps": [{ "id": "a", "sleep": "P1D" }] } }),
    );
    let mut live = stream(&fake, &resting, &[]).stream.unwrap();
    while next(&fake, &mut live).unwrap().is_some() {}
    let slept_ms: i64 = fake.slept_ms.borrow().iter().sum();
    assert!((299_000..=300_000).contains(&slept_ms), "{slept_ms}");

    let run_id = fed_run(&fake);
    let mut live = stream(&fake, &run_id, &[]).stream.unwrap();
    let mut looks = 0;
    for step in 0..1_000 {
        feed(&fake, &run_id, step..step + 1, "a");
        if next(&fake, &mut live).unwrap().is_none() {
            break;
        }
        looks += 1;
    }
    assert_eq!(looks, 899, "a request may make so many calls");
}

#[test]
fn a_stream_that_cannot_go_on_breaks_and_says_why_to_the_operator() {
    let fake = Fake::new();
    let run_id = fed_run(&fake);
    let mut live = stream(&fake, &run_id, &[]).stream.unwrap();
    for (step, times) in [(0, 1), (1, 3)] {
        fake.is_down.set(true);
        for _ in 0..times {
            assert_eq!(
                piece(&fake, &mut live),
                ":\n\n",
                "it may be there again soon"
            );
        }
        fake.is_down.set(false);
        feed(&fake, &run_id, step..step + 1, "a");
        assert_eq!(ids(&piece(&fake, &mut live)).len(), 1);
    }
    fake.is_down.set(true);
    for _ in 0..3 {
        piece(&fake, &mut live);
    }
    assert_eq!(next(&fake, &mut live), Err(Broken));
    let logged = fake.logged.borrow();
    let line = logged.last().unwrap();
    assert!(
        line.contains(&run_id) && line.contains("it is down"),
        "{line}"
    );
}
