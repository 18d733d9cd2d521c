//! SQLite as the core sees it: one statement at a time, synchronous, nothing that panics.
//!
//! The edge implements [`Sql`] over the storage of a Durable Object, the tests over a SQLite in
//! memory, so that the very statements that run in production run natively.

use std::rc::Rc;
use std::str::FromStr;

use serde_json::value::RawValue;

use crate::ports::Fault;
use crate::words::Timestamp;

/// A database of which the caller is the only user.
pub trait Sql {
    /// Runs one statement and reads all its rows. `params` are `?1`, `?2`, …; at most 100.
    fn exec(&self, statement: &str, params: &[SqlValue]) -> Result<Vec<SqlRow>, Fault>;

    /// Commits what `body` wrote, or nothing of it where it fails. Never nested.
    fn transaction<T>(&self, body: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault>;
}

/// A value in or out. An integer may pass through a double on its way: within ±2^53, and a computed
/// column may see it as a real. There is no boolean: it would be stored as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SqlValue {
    Null,
    Int(i64),
    Text(String),
}

impl From<i64> for SqlValue {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<Timestamp> for SqlValue {
    fn from(value: Timestamp) -> Self {
        Self::Int(value.ms())
    }
}

impl From<&str> for SqlValue {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for SqlValue {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl<T: Into<SqlValue>> From<Option<T>> for SqlValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// One row of a result. A value that is not what the reader expects is a [`Fault`] that names its
/// column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlRow {
    columns: Rc<[String]>,
    values: Vec<SqlValue>,
}

impl SqlRow {
    /// `columns` are the names of `values`, one for one, shared by all rows of a result.
    pub fn new(columns: Rc<[String]>, values: Vec<SqlValue>) -> Self {
        Self { columns, values }
    }

    pub fn text(&self, column: &str) -> Result<&str, Fault> {
        self.text_or_null(column)?
            .ok_or_else(|| unreadable(column, "it is null"))
    }

    pub fn text_or_null(&self, column: &str) -> Result<Option<&str>, Fault> {
        match self.value(column)? {
            SqlValue::Null => Ok(None),
            SqlValue::Text(text) => Ok(Some(text)),
            SqlValue::Int(_) => Err(unreadable(column, "expected text, found an integer")),
        }
    }

    pub fn int(&self, column: &str) -> Result<i64, Fault> {
        self.int_or_null(column)?
            .ok_or_else(|| unreadable(column, "it is null"))
    }

    pub fn int_or_null(&self, column: &str) -> Result<Option<i64>, Fault> {
        match self.value(column)? {
            SqlValue::Null => Ok(None),
            SqlValue::Int(value) => Ok(Some(*value)),
            SqlValue::Text(_) => Err(unreadable(column, "expected an integer, found text")),
        }
    }

    /// A time stored as milliseconds since the epoch.
    pub fn time(&self, column: &str) -> Result<Timestamp, Fault> {
        self.int(column).map(Timestamp::from_ms)
    }

    pub fn time_or_null(&self, column: &str) -> Result<Option<Timestamp>, Fault> {
        Ok(self.int_or_null(column)?.map(Timestamp::from_ms))
    }

    /// A word stored as its text: an id, a name.
    pub fn word<T: FromStr<Err: std::fmt::Display>>(&self, column: &str) -> Result<T, Fault> {
        self.text(column)?
            .parse()
            .map_err(|error: T::Err| unreadable(column, &error.to_string()))
    }

    /// JSON stored as text, character for character.
    pub fn json(&self, column: &str) -> Result<Box<RawValue>, Fault> {
        let text = self.text(column)?.to_owned();
        RawValue::from_string(text).map_err(|error| unreadable(column, &error.to_string()))
    }

    fn value(&self, column: &str) -> Result<&SqlValue, Fault> {
        let at = self.columns.iter().position(|name| name == column);
        at.and_then(|at| self.values.get(at))
            .ok_or_else(|| unreadable(column, "it is missing"))
    }
}

/// A row that does not hold what was once written there: a defect, never a passing trouble.
fn unreadable(column: &str, message: &str) -> Fault {
    Fault {
        retryable: false,
        ..Fault::new("reading a row", column, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::RunId;

    fn row() -> SqlRow {
        let columns = ["text", "int", "none"].map(str::to_owned);
        SqlRow::new(
            columns.into(),
            vec!["[1.0]".into(), 7.into(), SqlValue::Null],
        )
    }

    #[test]
    fn a_value_is_read_as_what_it_is() {
        let row = row();
        assert_eq!(row.text("text").unwrap(), "[1.0]");
        assert_eq!(row.json("text").unwrap().get(), "[1.0]");
        assert_eq!(row.int("int").unwrap(), 7);
        assert_eq!(row.time("int").unwrap(), Timestamp::from_ms(7));
        assert_eq!(row.text_or_null("none").unwrap(), None);
        assert_eq!(row.time_or_null("none").unwrap(), None);
    }

    #[test]
    fn what_is_not_as_expected_names_its_column() {
        let row = row();
        let faults = [
            row.text("int").err(),
            row.text("none").err(),
            row.text("absent").err(),
            row.int("text").err(),
            row.int("none").err(),
            row.word::<RunId>("text").err(),
            row.json("none").err(),
        ];
        let columns = ["int", "none", "absent", "text", "none", "text", "none"];
        for (fault, column) in faults.into_iter().zip(columns) {
            let fault = fault.unwrap();
            assert_eq!(fault.subject, column);
            assert!(!fault.retryable);
        }
    }
}
