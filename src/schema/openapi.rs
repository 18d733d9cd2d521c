//! The OpenAPI document: `schemas/openapi.json` names the routes and quotes the schemas by their
//! `$id`; here the quoted ones are put into it, so that it stands alone and nothing is written
//! twice.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Map;

use crate::json::{self, Value};

use super::embedded;

const ROUTES: &str = include_str!("../../schemas/openapi.json");

/// Keywords that mean nothing to readers of the document.
const LEFT_OUT: [&str; 5] = ["$id", "$schema", "$defs", "x-expected", "x-refused"];

thread_local! {
    static DOCUMENT: Rc<str> = build().into();
}

/// The OpenAPI 3.1 document as JSON: what `GET /openapi.json` answers. Built once per thread.
pub fn openapi() -> Rc<str> {
    DOCUMENT.with(Rc::clone)
}

fn build() -> String {
    let mut document: Value = serde_json::from_str(ROUTES).unwrap_or_default();
    let mut wanted = Vec::new();
    rewrite(&mut document, "", &mut wanted);
    let mut components: BTreeMap<String, Value> = BTreeMap::new();
    while let Some(place) = wanted.pop() {
        if components.contains_key(&place.component()) {
            continue;
        }
        let mut schema = place.read().unwrap_or_default();
        leave_out(&mut schema);
        rewrite(&mut schema, &place.name, &mut wanted);
        components.insert(place.component(), schema);
    }
    if let Some(slot) = document.pointer_mut("/components/schemas") {
        *slot = Value::Object(components.into_iter().collect::<Map<_, _>>());
    }
    json::write(&document)
}

/// A schema that is quoted: an embedded one, or one of the definitions in it.
struct Place {
    name: String,
    definition: Option<String>,
}

impl Place {
    /// Of a reference as it stands in the schema called `within`.
    fn of(reference: &str, within: &str) -> Option<Self> {
        let (file, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let name = match file
            .strip_prefix("/schemas/")
            .and_then(|rest| rest.strip_suffix(".json"))
        {
            Some(name) => name,
            None if file.is_empty() && !within.is_empty() => within,
            None => return None,
        };
        let definition = fragment.strip_prefix("/$defs/").map(str::to_owned);
        Some(Self {
            name: name.to_owned(),
            definition,
        })
    }

    /// Its name among the document's components. A test sees that no two are the same.
    fn component(&self) -> String {
        match &self.definition {
            None => self.name.clone(),
            Some(definition) if self.name == "common" => definition.clone(),
            Some(definition) => format!("{}.{definition}", self.name),
        }
    }

    fn read(&self) -> Option<Value> {
        let schema: Value = serde_json::from_str(embedded::text(&self.name)?).ok()?;
        match &self.definition {
            None => Some(schema),
            Some(definition) => schema.get("$defs")?.get(definition).cloned(),
        }
    }
}

/// Turns every reference to an embedded schema into one to a component, and notes which.
fn rewrite(value: &mut Value, within: &str, wanted: &mut Vec<Place>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                match member {
                    Value::String(reference) if name == "$ref" => {
                        if let Some(place) = Place::of(reference, within) {
                            *reference = format!("#/components/schemas/{}", place.component());
                            wanted.push(place);
                        }
                    }
                    _ => rewrite(member, within, wanted),
                }
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| rewrite(item, within, wanted)),
        _ => {}
    }
}

fn leave_out(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| !LEFT_OUT.contains(&name.as_str()));
            members.values_mut().for_each(leave_out);
        }
        Value::Array(items) => items.iter_mut().for_each(leave_out),
        _ => {}
    }
}
