use super::testing::{DAY_MS, Db, NOON, register, register_at, request, run_id};
use crate::ports::{TenantAnswer, TenantCall};
use crate::words::RunId;
use crate::words::limits::IDEMPOTENCY_RETENTION_MS;

fn registered(answer: TenantAnswer) -> (RunId, bool) {
    match answer {
        TenantAnswer::Registered { run_id, fresh, .. } => (run_id, fresh),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_key_makes_one_run() {
    let db = Db::new();
    let key = |fingerprint: &str| Some(request("POST /v1/runs", "k", fingerprint));
    assert_eq!(
        registered(db.call(register(run_id(1), key("a")))),
        (run_id(1), true)
    );
    let before = db.dump();
    assert_eq!(
        registered(db.call(register(run_id(2), key("a")))),
        (run_id(1), false)
    );
    assert!(matches!(
        db.call(register(run_id(3), key("b"))),
        TenantAnswer::KeyReused
    ));
    assert_eq!(db.dump(), before);
}

#[test]
fn a_straight_registration_writes_one_row_and_one_for_its_key() {
    let db = Db::new();
    assert_eq!(db.counted(register(run_id(1), None)).1, 1);
    assert_eq!(
        db.counted(register(run_id(2), Some(request("r", "k", "f"))))
            .1,
        2
    );
    assert_eq!(
        db.counted(register(run_id(3), Some(request("r", "k", "f"))))
            .1,
        0
    );
    // The count is the platform's where a table has neither a rowid nor an index beside its key.
    let plain = "SELECT count(*) FROM sqlite_master WHERE type = 'table'
                 AND name IN ('runs', 'requests') AND sql LIKE '%WITHOUT ROWID%'";
    assert_eq!(db.number(plain), 2);
    let indexes = "SELECT count(*) FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL";
    assert_eq!(db.number(indexes), 0);
}

#[test]
fn a_registration_is_all_or_nothing() {
    let db = Db::new();
    let call = || register(run_id(1), Some(request("r", "k", "f")));
    assert_eq!(registered(db.call_all_or_nothing(call)), (run_id(1), true));
}

#[test]
fn keys_that_would_blur_when_joined_are_two() {
    let db = Db::new();
    let pairs = [
        ("a", "b:1"),
        ("a:b", "1"),
        ("a", "b/1"),
        ("a/b", "1"),
        ("", "a1"),
        ("a1", ""),
        ("telegram", "p1:100"),
        ("telegram:p1", "100"),
        ("a\u{0}b", "1"),
        ("a", "b\u{0}1"),
        ("r", "é"),
        ("r", "e\u{301}"),
        ("r", "K"),
        ("r", "k"),
        ("r", "k "),
    ];
    for (n, (route, key)) in pairs.into_iter().enumerate() {
        let run_id = run_id(n as u64);
        let call = register(run_id.clone(), Some(request(route, key, "f")));
        assert_eq!(registered(db.call(call)), (run_id, true), "{route} {key}");
    }
}

#[test]
fn one_key_of_two_tenants_is_two_keys() {
    let (one, two) = (Db::new(), Db::new());
    for key in ["1", "telegram:p1:100"] {
        for body in ["alpha", "beta"] {
            let asked = |n| register(run_id(n), Some(request("r", key, body)));
            let fresh = body == "alpha";
            if fresh {
                assert_eq!(registered(one.call(asked(1))), (run_id(1), true));
                assert_eq!(registered(two.call(asked(2))), (run_id(2), true));
            } else {
                assert!(matches!(one.call(asked(3)), TenantAnswer::KeyReused));
                assert!(matches!(two.call(asked(3)), TenantAnswer::KeyReused));
            }
        }
    }
    assert!(!two.dump().contains(run_id(1).as_str()));
}

#[test]
fn a_key_is_kept_for_its_retention_and_then_removed() {
    // After how long the key is asked for again, and whether it is still known. It may be known up
    // to a day longer than promised.
    let cases = [
        (0, true),
        (DAY_MS, true),
        (IDEMPOTENCY_RETENTION_MS, true),
        (IDEMPOTENCY_RETENTION_MS + DAY_MS, false),
        (365 * DAY_MS, false),
        // The next to ask has a clock that is behind.
        (-DAY_MS, true),
    ];
    for born_ms in [0, DAY_MS / 2 - 1] {
        for (later_ms, known) in cases {
            let db = Db::new();
            let born = NOON.plus_ms(born_ms);
            let key = || Some(request("r", "k", "f"));
            db.call(register_at(run_id(1), key(), born));
            let later = born.plus_ms(later_ms);
            let (_, fresh) = registered(db.call(register_at(run_id(2), key(), later)));
            assert_eq!(fresh, !known, "{later_ms}");
            assert_eq!(db.number("SELECT count(*) FROM requests"), 1);
        }
    }
}

#[test]
fn expired_keys_are_removed_in_slices() {
    let db = Db::new();
    for n in 0..300 {
        db.call(register(run_id(n), Some(request("r", &n.to_string(), "f"))));
    }
    let later = NOON.plus_ms(9 * DAY_MS);
    let (_, rows) = db.counted(register_at(
        run_id(900),
        Some(request("r", "new", "f")),
        later,
    ));
    assert_eq!(rows, 22);
    let (_, rows) = db.counted(TenantCall::StaleRuns {
        before: later,
        limit: 500,
    });
    assert_eq!(rows, 200);
    assert_eq!(db.number("SELECT count(*) FROM requests"), 81);
}

#[test]
fn a_forgotten_run_of_a_key_is_found_again() {
    let db = Db::new();
    let key = || Some(request("r", "k", "f"));
    db.call(register(run_id(1), key()));
    db.call(TenantCall::ForgetRun { run_id: run_id(1) });
    assert_eq!(
        registered(db.call(register(run_id(2), key()))),
        (run_id(1), false)
    );
    assert_eq!(db.number("SELECT count(*) FROM runs"), 1);
}

#[test]
fn a_request_is_answered_again_once_it_was_answered() {
    let db = Db::new();
    let begin = |key: &str, fingerprint: &str| {
        db.counted(TenantCall::BeginRequest {
            request: request("r", key, fingerprint),
            now: NOON,
        })
    };
    let finish = |fingerprint: &str, status, body: &str| {
        let request = request("r", "k", fingerprint);
        db.call(TenantCall::FinishRequest {
            request,
            status,
            body: body.into(),
        })
    };
    assert!(matches!(finish("f", 201, "{}"), TenantAnswer::NotFound));
    assert!(matches!(begin("k", "f"), (TenantAnswer::Begun, 1)));
    assert!(matches!(begin("k", "f"), (TenantAnswer::Begun, 0)));
    assert!(matches!(begin("k", "g"), (TenantAnswer::KeyReused, 0)));
    assert!(matches!(finish("g", 201, "{}"), TenantAnswer::KeyReused));
    assert!(matches!(
        finish("f", 201, "{\"a\":1E5}"),
        TenantAnswer::Done
    ));
    assert!(matches!(
        finish("f", 201, "{\"a\":1E5}"),
        TenantAnswer::Done
    ));
    // Another who carried it out at the same time: the first answer stands.
    let TenantAnswer::Answered { status: 201, body } = finish("f", 409, "{}") else {
        panic!()
    };
    assert_eq!(body, "{\"a\":1E5}");
    let (TenantAnswer::Answered { status: 201, body }, 0) = begin("k", "f") else {
        panic!()
    };
    assert_eq!(body, "{\"a\":1E5}");
    assert!(matches!(begin("k", "g"), (TenantAnswer::KeyReused, 0)));
    assert!(matches!(begin("other", "f"), (TenantAnswer::Begun, 1)));
}

#[test]
fn an_answer_that_fits_no_row_is_not_cut() {
    let db = Db::new();
    let call = TenantCall::BeginRequest {
        request: request("r", "k", "f"),
        now: NOON,
    };
    db.call(call);
    let body = "x".repeat(2_000_000);
    let call = TenantCall::FinishRequest {
        request: request("r", "k", "f"),
        status: 201,
        body,
    };
    assert!(!db.try_call(call).unwrap_err().retryable);
}
