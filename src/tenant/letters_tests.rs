use super::testing::{
    Db, NOON, letter_id, project, projected_letter, projection, request, run_id, stray, value,
};
use crate::json::{Value, write};
use crate::ports::{DeadLetterFilter, TenantAnswer, TenantCall};
use crate::run::event::RequestRef;
use crate::words::RunId;

fn keep(db: &Db, n: u64, envelope: Value) -> i64 {
    match db.counted(TenantCall::KeepDeadLetter {
        letter: stray(n, envelope),
    }) {
        (TenantAnswer::Done, rows) => rows,
        other => panic!("{other:?}"),
    }
}

fn find(db: &Db, n: u64) -> Option<(Option<RunId>, String)> {
    match db.call(TenantCall::FindDeadLetter {
        dead_letter_id: letter_id(n),
    }) {
        TenantAnswer::DeadLetterFound { run_id, shown } => Some((run_id, shown.get().to_owned())),
        TenantAnswer::NotFound => None,
        other => panic!("{other:?}"),
    }
}

fn settle(db: &Db, n: u64, ms: i64, request: Option<RequestRef>) -> TenantAnswer {
    db.call(TenantCall::SettleStray {
        dead_letter_id: letter_id(n),
        status: "discarded".into(),
        comment: Some("no use".into()),
        request,
        now: NOON.plus_ms(ms),
    })
}

#[test]
fn a_stray_letter_is_shown_with_every_member_and_every_digit() {
    let db = Db::new();
    let envelope = format!(
        r#"{{"run_id":"{}","n":[1E5,1.0,18446744073709551616]}}"#,
        run_id(7)
    );
    assert_eq!(keep(&db, 1, value(&envelope)), 1);
    // The same message again, whatever it says then.
    assert_eq!(keep(&db, 1, value("{}")), 0);
    let shown = |status: &str, settled_at: &str| {
        format!(
            r#"{{"dead_letter_id":"{}","status":"{status}","reason":"invalid_envelope","message":"it is no envelope","run_id":"{}","step_index":null,"envelope":{envelope},"errors":[{{"pointer":"/run_id","message":"is missing"}}],"attempts":[],"created_at":"2024-12-01T12:00:00.000Z","settled_at":{settled_at}}}"#,
            letter_id(1),
            run_id(7)
        )
    };
    assert_eq!(find(&db, 1), Some((None, shown("open", "null"))));
    settle(&db, 1, 5, None);
    let settled = shown("discarded", "\"2024-12-01T12:00:00.005Z\"");
    assert_eq!(find(&db, 1), Some((None, settled)));
    assert_eq!(find(&db, 2), None);
}

#[test]
fn whatever_came_is_kept_as_it_came() {
    let db = Db::new();
    // Escaped, the last two are larger than a row may be.
    let texts = [
        "not json".to_owned(),
        String::new(),
        "\"".repeat(1_048_576),
        "\u{1}".repeat(1_048_576),
    ];
    for (n, text) in texts.into_iter().enumerate() {
        keep(&db, n as u64, Value::String(text.clone()));
        let (_, shown) = find(&db, n as u64).unwrap();
        let shown = value(&shown);
        assert_eq!(shown["envelope"], Value::String(text));
        assert_eq!(shown["run_id"], Value::Null);
    }
    for (n, text) in [
        "null",
        "[]",
        "7",
        r#"{"run_id":"run_1"}"#,
        r#"{"run_id":5}"#,
    ]
    .into_iter()
    .enumerate()
    {
        let n = n as u64 + 10;
        keep(&db, n, value(text));
        let shown = value(&find(&db, n).unwrap().1);
        assert_eq!(
            (write(&shown["envelope"]).as_str(), &shown["run_id"]),
            (text, &Value::Null)
        );
    }
    let letter = stray(99, Value::String("x".repeat(1_900_001)));
    let fault = db
        .try_call(TenantCall::KeepDeadLetter { letter })
        .unwrap_err();
    assert!(!fault.retryable);
}

#[test]
fn a_stray_letter_is_settled_once() {
    let db = Db::new();
    keep(&db, 1, value("{}"));
    let key = |fingerprint: &str| Some(request("POST discard", "k", fingerprint));
    assert!(matches!(settle(&db, 2, 0, None), TenantAnswer::NotFound));
    let TenantAnswer::DeadLetterFound {
        run_id: None,
        shown,
    } = settle(&db, 1, 1, key("f"))
    else {
        panic!()
    };
    // The same request gets the first answer; anybody else is told what was decided and when.
    let TenantAnswer::DeadLetterFound { shown: again, .. } = settle(&db, 1, 2, key("f")) else {
        panic!()
    };
    assert_eq!(shown.get(), again.get());
    assert!(matches!(
        settle(&db, 1, 3, key("g")),
        TenantAnswer::KeyReused
    ));
    for other in [
        None,
        Some(request("POST discard", "other", "f")),
        Some(request("POST resolve", "k", "f")),
    ] {
        let TenantAnswer::AlreadySettled { status, at } = settle(&db, 1, 4, other) else {
            panic!()
        };
        assert_eq!((status.as_str(), at), ("discarded", NOON.plus_ms(1)));
    }
}

#[test]
fn letters_of_runs_follow_their_run() {
    let db = Db::new();
    // seq, status of the letter, rows written (the run's and the letter's; the platform counts one
    // more for a new letter), the status afterwards
    let told = [
        (3, "open", 2, "open"),
        (4, "open", 1, "open"),
        (4, "open", 0, "open"),
        // Told late of the run, but news of the letter: it is settled once.
        (2, "resolved", 1, "resolved"),
        (9, "resolved", 1, "resolved"),
        (10, "open", 1, "resolved"),
    ];
    for (seq, status, rows, after) in told {
        let mut news = projection(run_id(1), seq, "blocked");
        news.dead_letters = vec![projected_letter(1, status)];
        assert_eq!(db.counted(project(vec![news])).1, rows, "{seq}");
        let (run, shown) = find(&db, 1).unwrap();
        assert_eq!(run, Some(run_id(1)));
        assert_eq!(shown, projected_letter(1, after).shown.get());
    }
    // It is settled in its run, not here; and no run can speak for a stray one or another's.
    assert!(matches!(settle(&db, 1, 0, None), TenantAnswer::NotFound));
    keep(&db, 2, value("{}"));
    let mut news = projection(run_id(2), 1, "blocked");
    news.dead_letters = vec![projected_letter(1, "x"), projected_letter(2, "x")];
    db.call(project(vec![news]));
    assert_eq!(find(&db, 1).unwrap().0, Some(run_id(1)));
    assert_eq!(find(&db, 2).unwrap().0, None);
}

#[test]
fn one_list_holds_both_kinds_newest_first() {
    let db = Db::new();
    for n in 0..40 {
        if n % 2 == 0 {
            let envelope = format!(r#"{{"run_id":"{}"}}"#, run_id(n % 4));
            keep(&db, n, value(&envelope));
        } else {
            let mut news = projection(run_id(100 + n), 1, "blocked");
            news.dead_letters = vec![projected_letter(
                n,
                if n < 20 { "open" } else { "resolved" },
            )];
            db.call(project(vec![news]));
        }
    }
    settle(&db, 0, 0, None);
    let filter = |run: Option<u64>, reason: Option<&str>, status: Option<&str>| DeadLetterFilter {
        run_id: run.map(run_id),
        reason: reason.map(str::to_owned),
        status: status.map(str::to_owned),
    };
    let all: Vec<u64> = (0..40).rev().collect();
    let chosen = |keep: fn(&u64) -> bool| all.iter().copied().filter(keep).collect::<Vec<_>>();
    let cases = [
        (filter(None, None, None), chosen(|_| true)),
        (filter(Some(2), None, None), chosen(|n| n % 4 == 2)),
        (filter(Some(103), None, None), vec![3]),
        (
            filter(None, Some("unknown_tool"), None),
            chosen(|n| n % 2 == 1),
        ),
        (
            filter(None, None, Some("open")),
            chosen(|n| *n > 0 && (n % 2 == 0 || *n < 20)),
        ),
        (
            filter(Some(0), Some("invalid_envelope"), Some("discarded")),
            vec![0],
        ),
        (filter(None, Some("nonsense"), None), vec![]),
    ];
    for (filter, expected) in cases {
        let mut found = Vec::new();
        let mut cursor = None;
        loop {
            let call = TenantCall::ListDeadLetters {
                filter: filter.clone(),
                limit: 7,
                cursor,
            };
            let (items, next) = db.items(call);
            found.extend(
                items
                    .iter()
                    .map(|item| item["dead_letter_id"].as_str().unwrap().to_owned()),
            );
            match next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        let expected: Vec<_> = expected
            .into_iter()
            .map(|n| letter_id(n).to_string())
            .collect();
        assert_eq!(found, expected, "{filter:?}");
    }
    assert_eq!(db.letters(DeadLetterFilter::default()).len(), 40);
}

#[test]
fn a_page_of_large_letters_ends_early() {
    let db = Db::new();
    for n in 0..6 {
        keep(&db, n, Value::String("x".repeat(1_500_000)));
    }
    let mut sizes = Vec::new();
    let mut cursor = None;
    loop {
        let call = TenantCall::ListDeadLetters {
            filter: DeadLetterFilter::default(),
            limit: 200,
            cursor,
        };
        let (items, next) = db.items(call);
        sizes.push(items.len());
        match next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(sizes, [2, 2, 2]);
}
