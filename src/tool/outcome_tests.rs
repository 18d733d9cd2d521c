use serde_json::json;

use super::definition::Effect;
use super::outcome::*;
use super::request::RequestError;
use crate::words::Timestamp;

const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

fn reply(status: u16, body: &str) -> Reply {
    Reply {
        hints: Vec::new(),
        status,
        retry_after: None,
        content_type: Some("application/json".to_owned()),
        callback_honoured: callback_honoured(None),
        body: body.as_bytes().to_vec(),
    }
}

fn judge(reply: Reply) -> Outcome {
    classify(&Answer::Reply(reply), NOW)
}

fn transport(kind: TransportKind) -> Answer {
    Answer::Transport(Transport {
        kind,
        message: "why".to_owned(),
    })
}

fn answer(word: &str) -> Answer {
    match word {
        "refused" => transport(TransportKind::Refused),
        "dns" => transport(TransportKind::Dns),
        "tls" => transport(TransportKind::Tls),
        "timed_out" => transport(TransportKind::TimedOut),
        "closed" => transport(TransportKind::Closed),
        "blocked" => transport(TransportKind::Blocked),
        "too_large" => transport(TransportKind::TooLarge { limit: 9 }),
        status => Answer::Reply(reply(status.parse().unwrap(), r#"{"a":1}"#)),
    }
}

fn meaning(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded { .. } => "succeeded",
        Outcome::Accepted => "accepted",
        Outcome::Retryable { .. } => "retryable",
        Outcome::Rejected {
            reason: RejectReason::Blocked,
            ..
        } => "blocked",
        Outcome::Rejected { reason, .. } => reason.as_str(),
    }
}

fn next(effect: Effect, outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Succeeded { .. } => "complete",
        Outcome::Accepted => "await_callback",
        Outcome::Rejected { .. } => "dead_letter",
        Outcome::Retryable { sent, .. } if may_repeat(effect, *sent) => "retry",
        Outcome::Retryable { .. } => "unknown",
    }
}

/// The documented table is the test: a row that is not true fails, and so does a missing one.
#[test]
fn the_documented_table_is_what_happens() {
    let rows: Vec<Vec<String>> = include_str!("outcome.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//! | ")?.strip_suffix(" |"))
        .skip(2)
        .map(|row| row.split(" | ").map(|cell| cell.replace('`', "")).collect())
        .collect();
    assert_eq!(rows.len(), 12);
    for row in &rows {
        for word in row[0].split(' ') {
            let outcome = classify(&answer(word), NOW);
            assert_eq!(meaning(&outcome), row[1], "{word}");
            assert_eq!(next(Effect::Read, &outcome), row[2], "read {word}");
            assert_eq!(
                next(Effect::Idempotent, &outcome),
                row[2],
                "idempotent {word}"
            );
            assert_eq!(
                next(Effect::AtMostOnce, &outcome),
                row[3],
                "at_most_once {word}"
            );
        }
    }
}

#[test]
fn results_are_kept_exactly_or_refused() {
    for (body, expected) in [
        ("", Some(json!(null))),
        (" \n", Some(json!(null))),
        ("null", Some(json!(null))),
        (r#"{"error":"no"}"#, Some(json!({ "error": "no" }))),
        ("<html>", None),
        ("{", None),
        (r#"{"v":1e400}"#, None),
        (r#"{"v":"\ud800"}"#, None),
        (r#"{"v":"\u0000"}"#, None),
    ] {
        match (judge(reply(200, body)), expected) {
            (Outcome::Succeeded { result }, Some(expected)) => assert_eq!(result, expected),
            (
                Outcome::Rejected {
                    reason: RejectReason::InvalidResult,
                    status_code: Some(200),
                    errors,
                    ..
                },
                None,
            ) => {
                assert!(!errors.is_empty(), "{body}");
            }
            (found, _) => panic!("{body}: {found:?}"),
        }
    }
    let id = r#"{"id":18446744073709551616}"#;
    match judge(reply(201, id)) {
        Outcome::Succeeded { result } => assert_eq!(crate::json::write(&result), id),
        found => panic!("{found:?}"),
    }
    let large = format!("\"{}\"", "x".repeat(524_288));
    assert_eq!(meaning(&judge(reply(200, &large))), "invalid_result");
}

#[test]
fn a_202_waits_for_its_callback_unless_it_declines() {
    for (header, honoured) in [
        (None, true),
        (Some("accepted"), true),
        (Some("https://d.example/v1/callbacks/t"), true),
        (Some(" None "), false),
    ] {
        assert_eq!(callback_honoured(header), honoured, "{header:?}");
    }
    let declined = Reply {
        callback_honoured: false,
        ..reply(202, "[1]")
    };
    assert_eq!(judge(declined), Outcome::Succeeded { result: json!([1]) });
}

#[test]
fn retry_after_is_read_where_a_retry_is_due() {
    for (status, header, expected) in [
        (429, Some("3"), Some(Some(3000))),
        (503, Some("3"), Some(Some(3000))),
        (409, Some("1"), Some(Some(1000))),
        (503, Some("soon"), Some(None)),
        (503, None, Some(None)),
        (404, Some("3"), None),
    ] {
        let found = match judge(Reply {
            retry_after: header.map(str::to_owned),
            ..reply(status, "")
        }) {
            Outcome::Retryable { retry_after_ms, .. } => Some(retry_after_ms),
            _ => None,
        };
        assert_eq!(found, expected, "{status} {header:?}");
    }
    let busy = judge(Reply {
        retry_after: Some("1".to_owned()),
        ..reply(409, "")
    });
    assert_eq!(next(Effect::AtMostOnce, &busy), "unknown");
}

#[test]
fn errors_say_what_the_tool_said_and_stay_small() {
    let error = |content_type: &str, status, body: &[u8]| {
        let reply = Reply {
            content_type: Some(content_type.to_owned()),
            body: body.to_vec(),
            ..reply(status, "")
        };
        match judge(reply) {
            Outcome::Rejected { error, .. } | Outcome::Retryable { error, .. } => error,
            found => panic!("{found:?}"),
        }
    };
    assert_eq!(error("text/plain", 403, b""), "the tool answered 403");
    assert_eq!(
        error("text/plain", 503, b"a\r\nb\x1b[0m"),
        "the tool answered 503: a  b\u{fffd}[0m"
    );
    let problem = br#"{"title":"No","detail":"Card declined"}"#;
    assert_eq!(
        error("application/problem+json; charset=utf-8", 402, problem),
        "the tool answered 402: Card declined"
    );
    assert_eq!(
        error("application/problem+json", 402, br#"{"title":"No"}"#),
        "the tool answered 402: No"
    );
    assert_eq!(
        error("application/problem+json", 402, b"{"),
        "the tool answered 402: {"
    );
    assert_eq!(
        error("text/html", 302, b""),
        "the tool answered 302, a redirect that is not followed"
    );
    let long = error("text/plain", 400, "é".repeat(2000).as_bytes());
    assert!(long.len() < 1100 && long.ends_with("é…"), "{long}");
    let html = error("text/html", 200, "ü".repeat(300).as_bytes());
    assert!(html.contains("(text/html)") && html.len() < 350, "{html}");
}

#[test]
fn verification_has_three_answers() {
    for (status, body, expected) in [
        (200, r#"{"id":1}"#, "done"),
        (200, "", "done"),
        (200, "<html>", "unknown"),
        (201, "{}", "unknown"),
        (202, "{}", "unknown"),
        (404, "", "not done"),
        (410, "", "unknown"),
        (500, "", "unknown"),
    ] {
        let found = match verified(&Answer::Reply(reply(status, body))) {
            Verified::Done { .. } => "done",
            Verified::NotDone => "not done",
            Verified::StillUnknown { .. } => "unknown",
        };
        assert_eq!(found, expected, "{status} {body}");
    }
    assert!(matches!(
        verified(&transport(TransportKind::TimedOut)),
        Verified::StillUnknown { .. }
    ));
}

#[test]
fn a_request_that_could_not_be_made_is_rejected() {
    let outcome = Outcome::from(RequestError::MissingSecret {
        name: "K".to_owned(),
    });
    assert_eq!(meaning(&outcome), "blocked");
    let outcome = Outcome::from(RequestError::Arguments {
        violations: Vec::new(),
    });
    assert_eq!(meaning(&outcome), "invalid_arguments");
}
