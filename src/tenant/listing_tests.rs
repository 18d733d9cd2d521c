use std::collections::BTreeSet;

use super::testing::{
    DAY_MS, Db, Dice, NOON, ids, project, projection, register, register_buyer, run_at, run_id,
    tags,
};
use crate::json::Value;
use crate::ports::{Projection, RunFilter, TenantAnswer, TenantCall};
use crate::words::Timestamp;

fn list(filter: RunFilter, limit: usize, cursor: Option<&str>) -> TenantCall {
    TenantCall::ListRuns {
        filter,
        limit,
        cursor: cursor.map(str::to_owned),
    }
}

fn by_status(status: &str) -> RunFilter {
    RunFilter {
        status: Some(status.into()),
        ..RunFilter::default()
    }
}

/// 250 runs of one millisecond, walked in pages of 10 while others come and change.
#[test]
fn a_walk_shows_every_untouched_run_once() {
    let filters = [
        RunFilter::default(),
        by_status("queued"),
        RunFilter {
            agent: Some("buyer".into()),
            ..by_status("queued")
        },
        RunFilter {
            tags: tags(&[("order", "42")]),
            ..RunFilter::default()
        },
    ];
    for seed in 1..=4 {
        for filter in &filters {
            let db = Db::with_buyer();
            let mut dice = Dice(seed);
            // Even numbers are the burst; odd ones come in between and after it while we walk.
            let burst: Vec<u64> = (0..250).map(|n| n * 2).collect();
            for n in &burst {
                db.call(register_buyer(run_id(*n)));
            }
            let mut touched = BTreeSet::new();
            let walked = db.walk_runs(filter, 10, |db| {
                for _ in 0..dice.roll(8) {
                    db.call(register_buyer(run_id(dice.roll(400) * 2 + 1)));
                }
                for _ in 0..dice.roll(4) {
                    let n = dice.roll(250) * 2;
                    let seq = dice.roll(20) + 1;
                    db.call(project(vec![projection(run_id(n), seq, "completed")]));
                    touched.insert(run_id(n).to_string());
                }
            });
            let walked = ids(&walked);
            let once: BTreeSet<_> = walked.iter().copied().collect();
            assert_eq!(once.len(), walked.len(), "none is shown twice");
            assert!(
                walked.windows(2).all(|pair| pair[0] > pair[1]),
                "newest first"
            );
            for n in burst {
                let id = run_id(n).to_string();
                assert!(
                    touched.contains(&id) || once.contains(id.as_str()),
                    "{id} is hidden"
                );
            }
        }
    }
}

#[test]
fn a_filter_chooses_what_it_names() {
    let db = Db::new();
    // agent, status, tags, minutes after noon
    type Row = (
        Option<&'static str>,
        &'static str,
        &'static [(&'static str, &'static str)],
        i64,
    );
    let rows: [Row; 6] = [
        (Some("buyer@1"), "queued", &[], 0),
        (Some("buyer@2"), "completed", &[("order", "42")], 1),
        (
            Some("buyer@12"),
            "queued",
            &[("order", "42"), ("a.b-c", "x\"y")],
            2,
        ),
        (Some("buyer.eu@1"), "failed", &[("order", "4")], 3),
        (None, "queued", &[("order", "421"), ("lang", "é")], 200),
        (Some("seller@1"), "queued", &[("ordre", "42")], 201),
    ];
    for (n, (agent, status, pairs, minutes)) in rows.into_iter().enumerate() {
        let created_at = NOON.plus_ms(minutes * 60_000);
        let told = Projection {
            agent: agent.map(str::to_owned),
            tags: tags(pairs),
            created_at,
            ..projection(run_at(created_at, n as u64), 1, status)
        };
        db.call(project(vec![told]));
    }
    let agent = |name: &str| RunFilter {
        agent: Some(name.into()),
        ..RunFilter::default()
    };
    let tagged = |pairs: &[(&str, &str)]| RunFilter {
        tags: tags(pairs),
        ..RunFilter::default()
    };
    let after = |minutes: i64| RunFilter {
        created_after: Some(NOON.plus_ms(minutes * 60_000)),
        ..RunFilter::default()
    };
    let cases: Vec<(RunFilter, &[usize])> = vec![
        (RunFilter::default(), &[5, 4, 3, 2, 1, 0]),
        (by_status("queued"), &[5, 4, 2, 0]),
        (by_status("paused"), &[]),
        (agent("buyer"), &[2, 1, 0]),
        (agent("buyer@1"), &[0]),
        (agent("buyer@2"), &[1]),
        (agent("buyer."), &[]),
        (agent("buyer.eu"), &[3]),
        (agent("%"), &[]),
        (tagged(&[("order", "42")]), &[2, 1]),
        (tagged(&[("order", "42"), ("a.b-c", "x\"y")]), &[2]),
        (tagged(&[("lang", "é")]), &[4]),
        (tagged(&[("lang", "e\u{301}")]), &[]),
        (tagged(&[("$.order", "42")]), &[]),
        (after(1), &[5, 4, 3, 2]),
        (after(150), &[5, 4]),
        (after(201), &[]),
        (after(-1), &[5, 4, 3, 2, 1, 0]),
        (
            RunFilter {
                created_after: Some(Timestamp::MIN),
                ..by_status("failed")
            },
            &[3],
        ),
        (
            RunFilter {
                created_after: Some(Timestamp::MAX),
                ..by_status("failed")
            },
            &[],
        ),
        (
            RunFilter {
                tags: tags(&[("order", "42")]),
                ..agent("buyer@12")
            },
            &[2],
        ),
    ];
    let made: Vec<String> = rows
        .iter()
        .enumerate()
        .map(|(n, row)| run_at(NOON.plus_ms(row.3 * 60_000), n as u64).to_string())
        .collect();
    for (filter, expected) in cases {
        for limit in [1, 2, 200] {
            let found = db.walk_runs(&filter, limit, |_| {});
            let expected: Vec<&str> = expected.iter().map(|n| made[*n].as_str()).collect();
            assert_eq!(ids(&found), expected, "{filter:?} by {limit}");
        }
    }
}

#[test]
fn a_filter_that_matches_little_ends_a_page_early_and_goes_on() {
    let db = Db::new();
    let many = (0..4_500)
        .map(|n| projection(run_id(n), 1, "completed"))
        .collect();
    db.call(project(many));
    for n in [0, 2_499, 2_500, 4_499] {
        db.call(project(vec![projection(run_id(n), 2, "failed")]));
    }
    let mut pages = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let (items, next) = db.items(list(by_status("failed"), 10, cursor.as_deref()));
        pages.push(
            ids(&items)
                .into_iter()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        );
        match next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    let expected = [vec![4_499, 2_500], vec![2_499], vec![0]];
    let expected = expected.map(|page| {
        page.into_iter()
            .map(|n| run_id(n).to_string())
            .collect::<Vec<_>>()
    });
    assert_eq!(pages, expected);
    // Exactly as many as are examined: the end is known.
    let db = Db::new();
    db.call(project(
        (0..2_000)
            .map(|n| projection(run_id(n), 1, "completed"))
            .collect(),
    ));
    assert_eq!(
        db.items(list(by_status("failed"), 10, None)),
        (vec![], None)
    );
    // A time that is long past what was asked for is not searched for.
    let db = Db::new();
    db.call(project(
        (0..4_500)
            .map(|n| projection(run_id(n), 1, "completed"))
            .collect(),
    ));
    let recent = RunFilter {
        created_after: Some(NOON.plus_ms(DAY_MS)),
        ..RunFilter::default()
    };
    assert_eq!(db.items(list(recent, 10, None)), (vec![], None));
}

#[test]
fn a_cursor_is_good_for_its_own_walk_alone() {
    let db = Db::new();
    for n in 0..30 {
        db.call(register(run_id(n), None));
    }
    let (_, Some(cursor)) = db.items(list(RunFilter::default(), 10, None)) else {
        panic!()
    };
    let (second, _) = db.items(list(RunFilter::default(), 5, Some(&cursor)));
    assert_eq!(ids(&second)[0], run_id(19).as_str());
    let other = Db::born(NOON.plus_ms(1));
    let tampered = cursor.replace(run_id(20).as_str(), run_id(25).as_str());
    assert_ne!(tampered, cursor);
    let cases: Vec<(&Db, RunFilter, String)> = vec![
        (&db, by_status("queued"), cursor.clone()),
        (&db, RunFilter::default(), tampered),
        (&db, RunFilter::default(), String::new()),
        (&db, RunFilter::default(), ".".into()),
        (&db, RunFilter::default(), run_id(20).to_string()),
        (&db, RunFilter::default(), format!("{cursor}0")),
        (&db, RunFilter::default(), cursor.to_uppercase()),
        (&other, RunFilter::default(), cursor.clone()),
    ];
    for (db, filter, cursor) in cases {
        assert!(
            matches!(
                db.call(list(filter, 10, Some(&cursor))),
                TenantAnswer::BadCursor
            ),
            "{cursor}"
        );
    }
    let letters = TenantCall::ListDeadLetters {
        filter: Default::default(),
        limit: 10,
        cursor: Some(cursor),
    };
    assert!(matches!(db.call(letters), TenantAnswer::BadCursor));
}

#[test]
fn a_limit_is_kept_within_its_bounds() {
    let db = Db::new();
    db.call(project(
        (0..300)
            .map(|n| projection(run_id(n), 1, "completed"))
            .collect(),
    ));
    for (limit, given) in [
        (0, 1),
        (1, 1),
        (200, 200),
        (1_000_000, 200),
        (usize::MAX, 200),
    ] {
        let (items, next): (Vec<Value>, _) = db.items(list(RunFilter::default(), limit, None));
        assert_eq!(items.len(), given);
        assert!(next.is_some());
    }
}
