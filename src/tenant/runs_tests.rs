use super::testing::{
    DAY_MS, Db, NOON, json, letter_id, project, projected_letter, projection, register,
    register_buyer, run_at, run_id, stray, value,
};
use crate::ports::{DeadLetterFilter, DefinitionKind, Fault, RunFilter, TenantAnswer, TenantCall};
use crate::words::{KeyId, RunId, TenantId, Timestamp};

fn key_id(n: i64) -> KeyId {
    KeyId::new(NOON.plus_ms(n), [0; 10])
}

/// One of each call but `Create` and the directory's.
fn every_call() -> Vec<TenantCall> {
    let kind = DefinitionKind::Tool;
    let request = super::testing::request("r", "k", "f");
    let name = || "pay".to_owned();
    vec![
        TenantCall::PutDefinition {
            kind,
            name: name(),
            definition: json("{}"),
            now: NOON,
        },
        TenantCall::GetDefinition {
            kind,
            name: name(),
            version: None,
        },
        TenantCall::GetDefinition {
            kind,
            name: name(),
            version: Some(1),
        },
        TenantCall::ListDefinitions {
            kind,
            limit: 10,
            cursor: None,
        },
        TenantCall::DeleteDefinition { kind, name: name() },
        register(run_id(1), Some(request.clone())),
        register(run_id(2), None),
        TenantCall::Tools {
            names: vec![name()],
        },
        project(vec![{
            let mut news = projection(run_id(1), 3, "blocked");
            news.dead_letters = vec![projected_letter(1, "open")];
            news
        }]),
        TenantCall::ListRuns {
            filter: RunFilter::default(),
            limit: 10,
            cursor: None,
        },
        TenantCall::KeepDeadLetter {
            letter: stray(2, value("{}")),
        },
        TenantCall::ListDeadLetters {
            filter: DeadLetterFilter::default(),
            limit: 10,
            cursor: None,
        },
        TenantCall::FindDeadLetter {
            dead_letter_id: letter_id(2),
        },
        TenantCall::SettleStray {
            dead_letter_id: letter_id(2),
            status: "discarded".into(),
            comment: None,
            request: None,
            now: NOON,
        },
        TenantCall::CreateKey {
            key_id: key_id(1),
            name: name(),
            role: "admin".into(),
            secret_sha256: "00".into(),
            now: NOON,
        },
        TenantCall::CheckKey {
            key_id: key_id(1),
            secret_sha256: "00".into(),
        },
        TenantCall::RevokeKey {
            key_id: key_id(1),
            now: NOON,
        },
        TenantCall::StaleRuns {
            before: NOON,
            limit: 10,
        },
        TenantCall::ForgetRun { run_id: run_id(2) },
        TenantCall::BeginRequest {
            request: request.clone(),
            now: NOON,
        },
        TenantCall::FinishRequest {
            request,
            status: 200,
            body: "{}".into(),
        },
    ]
}

#[test]
fn a_tenant_that_was_never_created_is_not_found_and_nothing_is_written() {
    let db = Db::empty();
    for call in every_call() {
        let text = format!("{call:?}");
        assert!(matches!(db.call(call), TenantAnswer::NotFound), "{text}");
    }
    assert_eq!(db.number("SELECT count(*) FROM sqlite_master"), 0);
}

#[test]
fn a_tenant_is_created_once() {
    let db = Db::empty();
    let create = || TenantCall::Create { now: NOON };
    assert!(matches!(db.call_all_or_nothing(create), TenantAnswer::Done));
    assert!(matches!(db.counted(create()), (TenantAnswer::Exists, 0)));
}

#[test]
fn a_failure_in_any_call_leaves_nothing_written() {
    let db = Db::new();
    for n in 0..every_call().len() {
        db.call_all_or_nothing(|| every_call().swap_remove(n));
    }
}

#[test]
fn no_statement_walks_over_a_whole_table() {
    let db = Db::new();
    for call in every_call() {
        db.call(call);
    }
    for (statement, plan) in db.plans() {
        for line in plan.lines().filter(|line| line.starts_with("SCAN ")) {
            // A scan in the key's order stops at its limit; the rest are one row or a parameter.
            let bounded = ["tenant", "sqlite_master", "(subquery", "asked", "tag"];
            let limited = statement.contains("LIMIT") || statement.contains("max(day)");
            let fine = bounded.iter().any(|name| line.contains(name)) || limited;
            assert!(fine, "{statement}\n{plan}");
        }
    }
}

#[test]
fn the_longest_log_is_true_and_says_so_once() {
    let db = Db::new();
    db.call(register(run_id(1), None));
    // seq, status, rows written, the status afterwards
    let told = [
        (2, "running", 1, "running"),
        (2, "running", 0, "running"),
        (5, "completed", 1, "completed"),
        (4, "waiting", 0, "completed"),
        (5, "failed", 0, "completed"),
    ];
    for (seq, status, rows, after) in told {
        let (answer, written) = db.counted(project(vec![projection(run_id(1), seq, status)]));
        assert!(matches!(answer, TenantAnswer::Done));
        assert_eq!(written, rows, "{seq}");
        let items = db.walk_runs(&RunFilter::default(), 10, |_| {});
        assert_eq!(items[0]["status"], after);
    }
    // A run that was never registered, or forgotten, is there once it tells of itself.
    assert_eq!(
        db.counted(project(vec![projection(run_id(2), 1, "running")]))
            .1,
        1
    );
    // Many at once, some of them no news.
    let many = (1..=100)
        .map(|n| projection(run_id(n), 3, "running"))
        .collect();
    assert_eq!(db.counted(project(many)).1, 99);
}

#[test]
fn an_item_has_all_members_of_a_run_in_a_list() {
    let db = Db::with_buyer();
    db.call(register_buyer(run_id(1)));
    db.call(project(vec![projection(run_id(2), 4, "completed")]));
    let call = TenantCall::ListRuns {
        filter: RunFilter::default(),
        limit: 10,
        cursor: None,
    };
    let TenantAnswer::Items { items, .. } = db.call(call) else {
        panic!()
    };
    let item = |id: RunId, status: &str, updated: &str, ended: &str| {
        format!(
            r#"{{"run_id":"{id}","agent":"buyer@2","status":"{status}","tags":{{"order":"42"}},"created_at":"2024-12-01T12:00:00.000Z","updated_at":"{updated}","ended_at":{ended}}}"#
        )
    };
    let ended = "2024-12-01T12:00:00.004Z";
    assert_eq!(
        items[0].get(),
        item(run_id(2), "completed", ended, &format!("\"{ended}\""))
    );
    assert_eq!(
        items[1].get(),
        item(run_id(1), "queued", "2024-12-01T12:00:00.000Z", "null")
    );
}

fn stale(db: &Db, before: Timestamp, limit: usize) -> (Vec<RunId>, i64) {
    match db.counted(TenantCall::StaleRuns { before, limit }) {
        (TenantAnswer::Stale(runs), rows) => (runs, rows),
        other => panic!("{other:?}"),
    }
}

#[test]
fn silent_runs_are_named_the_longest_silent_first() {
    let db = Db::new();
    assert_eq!(stale(&db, NOON, 10), (vec![], 0));
    for n in 1..=4 {
        db.call(register(run_id(n), None));
    }
    let changes = [(1, 9, "waiting"), (2, 7, "running"), (3, 8, "completed")];
    for (n, seq, status) in changes {
        db.call(project(vec![projection(run_id(n), seq, status)]));
    }
    assert_eq!(stale(&db, NOON, 10), (vec![], 0));
    assert_eq!(stale(&db, NOON.plus_ms(1), 10), (vec![run_id(4)], 0));
    assert_eq!(
        stale(&db, NOON.plus_ms(99), 10),
        (vec![run_id(4), run_id(2), run_id(1)], 0)
    );
}

#[test]
fn every_silent_run_has_its_turn_however_many_there_are() {
    let db = Db::new();
    for n in 0..5_000 {
        let status = if n % 7 == 0 { "waiting" } else { "completed" };
        let at = NOON.plus_ms(n);
        db.call(project(vec![projection(run_at(at, 0), 1, status)]));
    }
    let mut named = std::collections::BTreeSet::new();
    let expected = 5_000_usize.div_ceil(7);
    for _sweep in 0..2 * expected.div_ceil(25) {
        let (runs, rows) = stale(&db, NOON.plus_ms(DAY_MS), 50);
        assert!(runs.len() <= 50 && rows <= 1);
        named.extend(runs);
    }
    assert_eq!(named.len(), expected);
}

#[test]
fn only_a_run_that_was_never_born_is_forgotten() {
    let db = Db::new();
    db.call(register(run_id(1), None));
    db.call(register(run_id(2), None));
    db.call(project(vec![projection(run_id(2), 1, "queued")]));
    let forget = |n| db.counted(TenantCall::ForgetRun { run_id: run_id(n) });
    assert!(matches!(forget(1), (TenantAnswer::Done, 1)));
    assert!(matches!(forget(1), (TenantAnswer::Done, 0)));
    assert!(matches!(forget(2), (TenantAnswer::Exists, 0)));
}

#[test]
fn a_key_opens_with_its_secret_until_it_is_revoked() {
    let db = Db::new();
    let create = |secret: &str| {
        db.counted(TenantCall::CreateKey {
            key_id: key_id(1),
            name: "ci".into(),
            role: "operator".into(),
            secret_sha256: secret.into(),
            now: NOON,
        })
    };
    let check = |id: i64, secret: &str| {
        let call = TenantCall::CheckKey {
            key_id: key_id(id),
            secret_sha256: secret.into(),
        };
        match db.counted(call) {
            (TenantAnswer::Key { role }, 0) => Some(role),
            (TenantAnswer::NotFound, 0) => None,
            other => panic!("{other:?}"),
        }
    };
    let revoke = |id: i64| {
        db.counted(TenantCall::RevokeKey {
            key_id: key_id(id),
            now: NOON,
        })
    };
    assert!(matches!(create("aa"), (TenantAnswer::Done, 1)));
    assert!(matches!(create("aa"), (TenantAnswer::Done, 0)));
    assert!(matches!(create("bb"), (TenantAnswer::Exists, 0)));
    assert_eq!(check(1, "aa").as_deref(), Some("operator"));
    for (id, secret) in [(1, "ab"), (1, ""), (1, "a"), (1, "aaa"), (2, "aa")] {
        assert_eq!(check(id, secret), None, "{id} {secret}");
    }
    assert!(matches!(revoke(2), (TenantAnswer::NotFound, 0)));
    assert!(matches!(revoke(1), (TenantAnswer::Done, 1)));
    assert!(matches!(revoke(1), (TenantAnswer::Done, 0)));
    assert_eq!(check(1, "aa"), None);
}

#[test]
fn the_directory_lists_tenants_in_order() -> Result<(), Fault> {
    let db = Db::empty();
    let list = |after: Option<&str>, limit| {
        let after = after.map(|id| TenantId::parse(id).unwrap());
        match db.call(TenantCall::ListTenants { after, limit }) {
            TenantAnswer::Tenants(ids) => ids.into_iter().map(|id| id.to_string()).collect(),
            other => panic!("{other:?}"),
        }
    };
    let none: Vec<String> = list(None, 10);
    assert!(none.is_empty());
    assert_eq!(db.number("SELECT count(*) FROM sqlite_master"), 0);
    let add = |id: &str| {
        let tenant_id = TenantId::parse(id).unwrap();
        db.counted(TenantCall::AddTenant {
            tenant_id,
            now: NOON,
        })
    };
    for id in ["b", "a", "c"] {
        assert!(matches!(add(id), (TenantAnswer::Done, 1)), "{id}");
    }
    assert!(matches!(add("a"), (TenantAnswer::Exists, 0)));
    assert_eq!(list(None, 10), ["a", "b", "c"]);
    assert_eq!(list(None, 2), ["a", "b"]);
    assert_eq!(list(Some("b"), 2), ["c"]);
    Ok(())
}
