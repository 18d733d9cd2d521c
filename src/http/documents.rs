//! What anyone may read: that the service is up, and how to speak with it.

use serde_json::json;

use crate::json;
use crate::schema;

use super::problem::{self, Kind, Problem};
use super::routes::Document;
use super::{Config, Response};

/// These change with a deploy and not otherwise.
const KEPT: &str = "public, max-age=300";

pub fn document(
    document: Document,
    params: &[String],
    config: &Config,
) -> Result<Response, Problem> {
    let name = params.first().map_or("", String::as_str);
    match document {
        Document::Health => {
            let body = json!({ "status": "ok", "version": config.version });
            Ok(Response::json(200, json::write(&body)))
        }
        Document::OpenApi => {
            let text = schema::openapi();
            Ok(kept(
                "application/json; charset=utf-8",
                String::from(&*text),
            ))
        }
        Document::Schema => match schema::embedded::text(name) {
            Some(text) => Ok(kept(
                "application/schema+json; charset=utf-8",
                text.to_owned(),
            )),
            None => Err(Problem::not_found()),
        },
        Document::Problem => match problem::ALL.iter().find(|kind| kind.name == name) {
            Some(kind) => Ok(kept("application/json; charset=utf-8", description(kind))),
            None => Err(Problem::not_found()),
        },
    }
}

fn description(kind: &Kind) -> String {
    json::write(&json!({
        "type": format!("/problems/{}", kind.name),
        "title": kind.title,
        "status": kind.status,
        "description": kind.meaning,
    }))
}

fn kept(content_type: &str, body: String) -> Response {
    Response {
        status: 200,
        headers: Vec::new(),
        body,
        stream: None,
    }
    .header("content-type", content_type)
    .header("cache-control", KEPT)
}
