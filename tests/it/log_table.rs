//! The log's very statements, on a real SQLite.

use dormouse::flow::log_table::LogTable;
use dormouse::ports::Fault;
use dormouse::run::Row;
use dormouse::sql::{Sql, SqlRow, SqlValue};
use rusqlite::types::{Value, ValueRef};

struct Database(rusqlite::Connection);

impl Sql for Database {
    fn exec(&self, statement: &str, params: &[SqlValue]) -> Result<Vec<SqlRow>, Fault> {
        let failed = |e: rusqlite::Error| Fault::new("query", statement, e.to_string());
        let mut prepared = self.0.prepare(statement).map_err(failed)?;
        let columns: std::rc::Rc<[String]> = prepared
            .column_names()
            .into_iter()
            .map(str::to_owned)
            .collect();
        let params = params.iter().map(|value| match value {
            SqlValue::Null => Value::Null,
            SqlValue::Int(number) => Value::Integer(*number),
            SqlValue::Text(text) => Value::Text(text.clone()),
        });
        let mut rows = prepared
            .query(rusqlite::params_from_iter(params))
            .map_err(failed)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let values = (0..columns.len()).map(|index| match row.get_ref(index).unwrap() {
                ValueRef::Integer(number) => SqlValue::Int(number),
                ValueRef::Text(text) => SqlValue::Text(String::from_utf8(text.to_vec()).unwrap()),
                _ => SqlValue::Null,
            });
            found.push(SqlRow::new(columns.clone(), values.collect()));
        }
        Ok(found)
    }

    fn transaction<T>(&self, body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        self.0.execute_batch("BEGIN").unwrap();
        let result = body();
        self.0
            .execute_batch(if result.is_ok() { "COMMIT" } else { "ROLLBACK" })
            .unwrap();
        result
    }
}

fn table() -> LogTable<Database> {
    LogTable::new(Database(rusqlite::Connection::open_in_memory().unwrap()))
}

fn row(seq: u64, bytes: usize) -> Row {
    Row {
        seq,
        body: "x".repeat(bytes),
    }
}

fn seqs(rows: &[Row]) -> Vec<u64> {
    rows.iter().map(|row| row.seq).collect()
}

#[test]
fn asking_for_a_log_that_is_not_there_makes_nothing() {
    let table = table();
    assert_eq!(table.load().unwrap(), []);
    assert_eq!(table.page(1, 10).unwrap(), []);
    assert_eq!(table.page_back(1, 10).unwrap(), []);
    let tables = table
        .sql()
        .exec("SELECT name FROM sqlite_master", &[])
        .unwrap();
    assert!(tables.is_empty());
}

#[test]
fn rows_come_back_in_their_order() {
    let table = table();
    table.append(&[row(1, 10)]).unwrap();
    table.append(&[row(4, 10), row(5, 10)]).unwrap();
    assert_eq!(seqs(&table.load().unwrap()), [1, 4, 5]);
}

#[test]
fn a_long_log_comes_back_whole_though_in_pieces() {
    for (count, bytes) in [(1_000, 10), (2_500, 10), (7, 400_000), (4, 1_048_576)] {
        let table = table();
        for seq in 1..=count {
            table.append(&[row(seq, bytes)]).unwrap();
        }
        let all: Vec<u64> = (1..=count).collect();
        assert_eq!(
            seqs(&table.load().unwrap()),
            all,
            "{count} of {bytes} bytes"
        );
    }
}

#[test]
fn rows_are_appended_all_or_none() {
    let table = table();
    table.append(&[row(1, 10)]).unwrap();
    assert!(table.append(&[row(2, 10), row(1, 10)]).is_err());
    assert_eq!(seqs(&table.load().unwrap()), [1]);
}

#[test]
fn a_page_begins_with_the_row_that_holds_its_entry() {
    let table = table();
    for seq in [1, 4, 5, 9] {
        table.append(&[row(seq, 10)]).unwrap();
    }
    for (seq, limit, expected) in [
        (1, 10, vec![1, 4, 5, 9]),
        (3, 10, vec![1, 4, 5, 9]),
        (4, 2, vec![4, 5]),
        (8, 10, vec![5, 9]),
    ] {
        assert_eq!(
            seqs(&table.page(seq, limit).unwrap()),
            expected,
            "{seq} {limit}"
        );
    }
}

#[test]
fn a_page_of_large_rows_is_short_but_never_empty() {
    let table = table();
    for seq in 1..=5 {
        table.append(&[row(seq, 700_000)]).unwrap();
    }
    assert_eq!(seqs(&table.page(1, 10).unwrap()), [1, 2]);
    assert_eq!(seqs(&table.page(5, 10).unwrap()), [5]);
    assert_eq!(seqs(&table.page_back(5, 10).unwrap()), [4, 5]);
    assert_eq!(seqs(&table.page_back(1, 10).unwrap()), [1]);
    // The row beside is read however large its neighbour is: its hash is the first entry's `prev_hash`.
    table.append(&[row(6, 1_800_000)]).unwrap();
    table.append(&[row(7, 1_800_000)]).unwrap();
    assert_eq!(seqs(&table.page(6, 10).unwrap()), [6, 7]);
    assert_eq!(seqs(&table.page_back(7, 10).unwrap()), [6, 7]);
}

#[test]
fn a_page_back_ends_with_the_row_that_holds_its_entry() {
    let table = table();
    for seq in [1, 4, 5, 9] {
        table.append(&[row(seq, 10)]).unwrap();
    }
    for (seq, limit, expected) in [
        (u64::MAX, 10, vec![1, 4, 5, 9]),
        (9, 2, vec![5, 9]),
        (8, 10, vec![1, 4, 5]),
        (4, 1, vec![4]),
        (3, 10, vec![1]),
    ] {
        assert_eq!(
            seqs(&table.page_back(seq, limit).unwrap()),
            expected,
            "{seq} {limit}"
        );
    }
}
