//! Tools and agents: stored as immutable versions.

use serde_json::Map;

use crate::agent::{Agent, with_keys_hidden};
use crate::flow::front;
use crate::json::{self, Json, Value, Violation};
use crate::ports::{Definition, DefinitionKind, TenantAnswer, TenantCall, World};
use crate::schema;
use crate::tool::Tool;
use crate::words::limits::DEFINITION_BYTES_MAX;
use crate::words::{Name, TenantId};

use super::page::{bad_cursor, digits};
use super::problem::{INVALID_AGENT, INVALID_TOOL, Problem};
use super::{Call, Response, unexpected};

pub async fn put<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    kind: DefinitionKind,
) -> Result<Response, Problem> {
    let invalid = |errors| match kind {
        DefinitionKind::Tool => Problem::invalid(INVALID_TOOL, errors),
        DefinitionKind::Agent => Problem::invalid(INVALID_AGENT, errors),
    };
    let name = Name::parse(call.param(0)).map_err(|error| {
        invalid(vec![Violation::new(
            "",
            format!("the path ends with no name: {error}"),
        )])
    })?;
    if json::bytes_len(&call.body) > DEFINITION_BYTES_MAX {
        return Err(Problem::too_large("a definition", DEFINITION_BYTES_MAX));
    }
    let flaws = match kind {
        DefinitionKind::Tool => tool_flaws(&call.body),
        DefinitionKind::Agent => agent_flaws(&call.body),
    };
    if !flaws.is_empty() {
        return Err(invalid(flaws));
    }
    let put = TenantCall::PutDefinition {
        kind,
        name: name.as_str().to_owned(),
        definition: Json::new(call.body.clone()),
        now: call.world.now(),
    };
    match call.world.tenant(tenant_id, &put).await? {
        TenantAnswer::Definition(stored) => {
            let is_first = stored.fresh && stored.version == 1;
            let response = Response::json(if is_first { 201 } else { 200 }, shown(&stored));
            Ok(if is_first {
                response.header("location", location(kind, &name))
            } else {
                response
            })
        }
        _ => Err(unexpected("store a definition", tenant_id)),
    }
}

/// What is wrong with a tool, as far as one reading after another finds out.
fn tool_flaws(definition: &Value) -> Vec<Violation> {
    if let Err(flaws) = schema::validate("tool", definition) {
        return flaws;
    }
    let tool = match Tool::parse(definition) {
        Ok(tool) => tool,
        Err(flaws) => return flaws,
    };
    let mut flaws = schema_flaws(tool.parameters.as_ref(), "/parameters");
    flaws.extend(schema_flaws(tool.result.as_ref(), "/result"));
    flaws
}

fn agent_flaws(definition: &Value) -> Vec<Violation> {
    if let Err(flaws) = schema::validate("agent", definition) {
        return flaws;
    }
    let agent = match Agent::parse(definition) {
        Ok(agent) => agent,
        Err(flaws) => return flaws,
    };
    let mut flaws = schema_flaws(agent.input_schema.as_ref(), "/input_schema");
    flaws.extend(front::unusable_schemas(&agent, "/planner"));
    flaws
}

fn schema_flaws(schema: Option<&Value>, pointer: &str) -> Vec<Violation> {
    schema
        .and_then(|schema| schema::check(schema, pointer).err())
        .unwrap_or_default()
}

pub async fn get<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    kind: DefinitionKind,
) -> Result<Response, Problem> {
    let name = name(call)?;
    let version = call
        .query
        .parsed("version", "a whole number from 1", |text| {
            digits(text).filter(|version| *version > 0)
        })?;
    let get = TenantCall::GetDefinition {
        kind,
        name,
        version,
    };
    match call.world.tenant(tenant_id, &get).await? {
        TenantAnswer::Definition(stored) => Ok(Response::json(200, shown(&stored))),
        TenantAnswer::NotFound => Err(Problem::not_found()),
        _ => Err(unexpected("find a definition", tenant_id)),
    }
}

pub async fn list<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    kind: DefinitionKind,
) -> Result<Response, Problem> {
    let (limit, cursor) = (call.query.limit()?, call.query.cursor());
    let list = TenantCall::ListDefinitions {
        kind,
        limit,
        cursor,
    };
    match call.world.tenant(tenant_id, &list).await? {
        TenantAnswer::Definitions { items, next_cursor } => {
            let items: Vec<String> = items.iter().map(shown).collect();
            let next_cursor = next_cursor.map_or(Value::Null, Value::String);
            let items = items.join(",");
            let body = format!(r#"{{"items":[{items}],"next_cursor":{next_cursor}}}"#);
            Ok(Response::json(200, body))
        }
        TenantAnswer::BadCursor => Err(bad_cursor()),
        _ => Err(unexpected("list definitions", tenant_id)),
    }
}

pub async fn delete<W: World>(
    call: &Call<'_, W>,
    tenant_id: &TenantId,
    kind: DefinitionKind,
) -> Result<Response, Problem> {
    let delete = TenantCall::DeleteDefinition {
        kind,
        name: name(call)?,
    };
    match call.world.tenant(tenant_id, &delete).await? {
        TenantAnswer::Done => Ok(Response::empty(204)),
        TenantAnswer::NotFound => Err(Problem::not_found()),
        _ => Err(unexpected("delete a definition", tenant_id)),
    }
}

/// What is no name names nothing.
fn name<W>(call: &Call<'_, W>) -> Result<String, Problem> {
    match Name::parse(call.param(0)) {
        Ok(name) => Ok(name.as_str().to_owned()),
        Err(_) => Err(Problem::not_found()),
    }
}

fn location(kind: DefinitionKind, name: &Name) -> String {
    let kind = match kind {
        DefinitionKind::Tool => "tools",
        DefinitionKind::Agent => "agents",
    };
    format!("/v1/{kind}/{name}")
}

/// A version with the members of its definition, none of which has the name of one put before.
fn shown(stored: &Definition) -> String {
    let mut members = Map::new();
    members.insert("name".to_owned(), stored.name.as_str().into());
    members.insert("version".to_owned(), stored.version.into());
    members.insert(
        "created_at".to_owned(),
        stored.created_at.to_string().into(),
    );
    // Of a tool there is nothing to hide: it has no models.
    if let Value::Object(definition) = &*with_keys_hidden(&stored.definition) {
        members.extend(definition.clone());
    }
    json::write(&Value::Object(members))
}
