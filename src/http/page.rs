//! The query of a request, and pages of lists.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::words::limits::{LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX};

use super::Response;
use super::problem::Problem;
use super::routes::percent_decode;

/// The parameters of a request's query, each known to its route and given once.
#[derive(Debug, Default)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    /// Reads a query and refuses what `known` does not name: a typo is never silently ignored.
    pub fn read(query: Option<&str>, known: &[&str]) -> Result<Self, Problem> {
        let mut read = BTreeMap::new();
        for pair in query
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
        {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let malformed = || Problem::query(name, "is not percent-encoded UTF-8");
            let name = percent_decode(name, true).ok_or_else(malformed)?;
            let value = percent_decode(value, true).ok_or_else(malformed)?;
            let is_known = known
                .iter()
                .any(|known| *known == name || (known.ends_with('.') && name.starts_with(known)));
            if !is_known {
                let message = if known.is_empty() {
                    "is unknown: there are none here".to_owned()
                } else {
                    format!(
                        "is unknown: known are {}",
                        known.join(", ").replace("tag.", "tag.NAME")
                    )
                };
                return Err(Problem::query(&name, &message));
            }
            if read.insert(name.clone(), value).is_some() {
                return Err(Problem::query(&name, "is given more than once"));
            }
        }
        Ok(Self(read))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A parameter that is read by `parse`; `expected` ends the sentence that says what it must be.
    pub fn parsed<T>(
        &self,
        name: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        match parse(text) {
            Some(value) => Ok(Some(value)),
            None => Err(Problem::query(name, &format!("must be {expected}"))),
        }
    }

    /// Parameters whose names begin with `prefix`, by the rest of their names.
    pub fn beginning_with(&self, prefix: &str) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .filter_map(move |(name, value)| Some((name.strip_prefix(prefix)?, value.as_str())))
    }

    /// How many items the client wants, if it says so: more than there may be is as many as may be.
    pub fn limit_given(&self) -> Result<Option<usize>, Problem> {
        self.parsed("limit", "a whole number from 1", |text| {
            let number = digits(text)?;
            let number = usize::try_from(number)
                .unwrap_or(LIST_LIMIT_MAX)
                .min(LIST_LIMIT_MAX);
            (number > 0).then_some(number)
        })
    }

    pub fn limit(&self) -> Result<usize, Problem> {
        Ok(self.limit_given()?.unwrap_or(LIST_LIMIT_DEFAULT))
    }

    pub fn cursor(&self) -> Option<String> {
        self.get("cursor").map(str::to_owned)
    }
}

pub fn bad_cursor() -> Problem {
    Problem::query("cursor", "is not a cursor of this list with these filters")
}

/// A whole number in digits and nothing else; one that is too large is the largest.
pub fn digits(text: &str) -> Option<u64> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// A page of a list.
pub fn page(items: &[Box<RawValue>], next_cursor: Option<&str>) -> Response {
    let items: Vec<&str> = items.iter().map(|item| item.get()).collect();
    let next_cursor = match next_cursor {
        Some(cursor) => serde_json::Value::from(cursor).to_string(),
        None => "null".to_owned(),
    };
    let items = items.join(",");
    Response::json(
        200,
        format!(r#"{{"items":[{items}],"next_cursor":{next_cursor}}}"#),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_from_one_and_at_most_the_most() {
        for (query, expected) in [
            ("", Some(50)),
            ("limit=1", Some(1)),
            ("limit=200", Some(200)),
            ("limit=201", Some(200)),
            ("limit=99999999999999999999999", Some(200)),
            ("limit=0", None),
            ("limit=-1", None),
            ("limit=%2B1", None),
            ("limit=1.5", None),
            ("limit=", None),
            ("limit", None),
            ("limit=ten", None),
        ] {
            let limit = Query::read(Some(query), &["limit"]).unwrap().limit();
            assert_eq!(limit.ok(), expected, "{query}");
        }
    }

    #[test]
    fn what_is_unknown_doubled_or_malformed_is_named() {
        for (query, parameter) in [
            ("staus=open", "staus"),
            ("status=a&status=b", "status"),
            ("status=%zz", "status"),
            ("status=%FF", "status"),
            ("tag=1", "tag"),
        ] {
            let problem = Query::read(Some(query), &["status", "tag."]).unwrap_err();
            let response = problem.into_response();
            assert_eq!(response.status, 400);
            assert!(
                response
                    .body
                    .contains(&format!(r#""parameter":"{parameter}""#)),
                "{query}"
            );
        }
    }

    #[test]
    fn values_are_decoded() {
        let query = Query::read(
            Some("&status=a+b%26c&tag.order=4%3D2&"),
            &["status", "tag."],
        );
        let query = query.unwrap();
        assert_eq!(query.get("status"), Some("a b&c"));
        assert_eq!(
            query.beginning_with("tag.").collect::<Vec<_>>(),
            [("order", "4=2")]
        );
    }

    #[test]
    fn a_page_is_json() {
        let item = RawValue::from_string("{\"n\":1E5}".to_owned()).unwrap();
        let body = page(&[item.clone(), item], Some("a\"b")).body;
        assert_eq!(
            body,
            r#"{"items":[{"n":1E5},{"n":1E5}],"next_cursor":"a\"b"}"#
        );
        assert_eq!(page(&[], None).body, r#"{"items":[],"next_cursor":null}"#);
    }
}
