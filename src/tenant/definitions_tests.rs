use super::testing::{Db, NOON, json};
use crate::json::write;
use crate::ports::{Definition, DefinitionKind, TenantAnswer, TenantCall};

const TOOL: DefinitionKind = DefinitionKind::Tool;

fn put(db: &Db, kind: DefinitionKind, name: &str, text: &str, ms: i64) -> (Definition, i64) {
    let call = TenantCall::PutDefinition {
        kind,
        name: name.into(),
        definition: json(text),
        now: NOON.plus_ms(ms),
    };
    match db.counted(call) {
        (TenantAnswer::Definition(definition), rows) => (definition, rows),
        other => panic!("{other:?}"),
    }
}

fn get(db: &Db, name: &str, version: Option<u64>) -> Option<(u64, String)> {
    match db.call(TenantCall::GetDefinition {
        kind: TOOL,
        name: name.into(),
        version,
    }) {
        TenantAnswer::Definition(found) => Some((found.version, write(&found.definition))),
        TenantAnswer::NotFound => None,
        other => panic!("{other:?}"),
    }
}

fn delete(db: &Db, name: &str) -> TenantAnswer {
    db.call(TenantCall::DeleteDefinition {
        kind: TOOL,
        name: name.into(),
    })
}

fn list(db: &Db, limit: usize, cursor: Option<String>) -> (Vec<String>, Option<String>) {
    match db.call(TenantCall::ListDefinitions {
        kind: TOOL,
        limit,
        cursor,
    }) {
        TenantAnswer::Definitions { items, next_cursor } => (
            items
                .into_iter()
                .map(|item| format!("{}@{}", item.name, item.version))
                .collect(),
            next_cursor,
        ),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_version_is_made_only_by_what_says_something_new() {
    let db = Db::new();
    // text, the version it gets, whether it is new, the rows written (the platform counts one more:
    // the key's index)
    let steps = [
        (r#"{"a":1,"b":[1,2]}"#, 1, true, 2),
        (r#"{ "b":[1,2], "a":1 }"#, 1, false, 0),
        (r#"{"a":1,"b":[2,1]}"#, 2, true, 2),
        (r#"{"a":1,"b":[1,2]}"#, 3, true, 2),
        (r#"{"a":1.0,"b":[1,2]}"#, 3, false, 0),
        (r#"{"a":18446744073709551616}"#, 4, true, 2),
    ];
    for (text, version, fresh, rows) in steps {
        let (definition, written) = put(&db, TOOL, "pay", text, 0);
        assert_eq!(
            (definition.version, definition.fresh, written),
            (version, fresh, rows),
            "{text}"
        );
    }
    assert_eq!(
        get(&db, "pay", None),
        Some((4, r#"{"a":18446744073709551616}"#.into()))
    );
    assert_eq!(
        get(&db, "pay", Some(1)),
        Some((1, r#"{"a":1,"b":[1,2]}"#.into()))
    );
    for version in [0, 5, u64::MAX] {
        assert_eq!(get(&db, "pay", Some(version)), None);
    }
    // An agent of the same name is another thing.
    assert_eq!(put(&db, DefinitionKind::Agent, "pay", "{}", 0).0.version, 1);
}

#[test]
fn a_deleted_name_is_gone_but_its_versions_are_not() {
    let db = Db::new();
    assert!(matches!(delete(&db, "pay"), TenantAnswer::NotFound));
    put(&db, TOOL, "pay", r#"{"a":1}"#, 0);
    assert!(matches!(delete(&db, "pay"), TenantAnswer::Done));
    assert!(matches!(delete(&db, "pay"), TenantAnswer::NotFound));
    assert_eq!(get(&db, "pay", None), None);
    assert_eq!(get(&db, "pay", Some(1)).unwrap().0, 1);
    assert_eq!(list(&db, 10, None).0, Vec::<String>::new());
    // The same text again: numbering goes on.
    let (again, _) = put(&db, TOOL, "pay", r#"{"a":1}"#, 0);
    assert_eq!((again.version, again.fresh), (2, true));
    assert_eq!(get(&db, "pay", None).unwrap().0, 2);
}

#[test]
fn tools_are_resolved_by_the_name_asked_for() {
    let db = Db::new();
    put(&db, TOOL, "pay", r#"{"v":1}"#, 0);
    put(&db, TOOL, "pay", r#"{"v":2}"#, 0);
    put(&db, TOOL, "old", r#"{"v":1E5}"#, 0);
    put(&db, DefinitionKind::Agent, "buyer", "{}", 0);
    delete(&db, "old");
    let asked = [
        "pay", "pay@1", "pay", "pay@9", "pay@+1", "pay@01", "pay@", "old", "old@1", "buyer", "",
    ];
    let names = asked.map(str::to_owned).to_vec();
    let TenantAnswer::Tools(tools) = db.call(TenantCall::Tools { names }) else {
        panic!()
    };
    let found: Vec<_> = tools
        .iter()
        .map(|(name, tool)| (name.as_str(), tool.version, write(&tool.definition)))
        .collect();
    let expected = [
        ("old@1", 1, r#"{"v":1E5}"#.to_owned()),
        ("pay", 2, r#"{"v":2}"#.to_owned()),
        ("pay@1", 1, r#"{"v":1}"#.to_owned()),
    ];
    assert_eq!(found, expected);
}

#[test]
fn the_list_is_newest_first_and_complete() {
    let db = Db::new();
    // Many of one millisecond, so that the time alone is no position.
    for n in 0..25 {
        put(&db, TOOL, &format!("t{n:02}"), "{}", n / 10);
    }
    put(&db, TOOL, "t03", r#"{"v":2}"#, 9);
    let mut walked = Vec::new();
    let mut cursor = None;
    loop {
        let (names, next) = list(&db, 4, cursor);
        walked.extend(names);
        // What changes during the walk hides nothing else.
        put(&db, TOOL, "t24", &walked.len().to_string(), 100);
        match next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(walked.first().map(String::as_str), Some("t03@2"));
    walked.sort();
    walked.dedup();
    assert_eq!(walked.len(), 25);
    for bad in ["", "x", "1.2", "1~t01.0123456789abcdef"] {
        let call = TenantCall::ListDefinitions {
            kind: TOOL,
            limit: 4,
            cursor: Some(bad.into()),
        };
        assert!(matches!(db.call(call), TenantAnswer::BadCursor), "{bad}");
    }
}

#[test]
fn a_page_of_large_definitions_ends_early() {
    let db = Db::new();
    let large = format!("\"{}\"", "x".repeat(1_500_000));
    for name in ["a", "b", "c", "d"] {
        put(&db, TOOL, name, &large, 0);
    }
    let (first, next) = list(&db, 50, None);
    assert_eq!(first, ["d@1", "c@1"]);
    let (second, next) = list(&db, 50, next);
    assert_eq!((second.len(), next), (2, None));
}
