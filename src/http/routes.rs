//! Which path leads where, and who may go there: the one table of routes.

use crate::decide::Control;
use crate::ports::DefinitionKind;

use super::auth::Role;
use super::problem::{METHOD_NOT_ALLOWED, NOT_FOUND, Problem};

/// One route of the API.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub method: &'static str,
    /// As in the OpenAPI document: a segment may be `{name}`, or `{name}` with an ending.
    pub path: &'static str,
    /// Parameters of the query; one that ends with a dot is the beginning of many.
    pub query: &'static [&'static str],
    pub body: BodyRule,
    pub to: To,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyRule {
    /// Whatever is sent is not looked at.
    Unread,
    /// An empty body is `{}`.
    Optional,
    Required,
}

/// Who answers, and who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Anyone.
    Document(Document),
    /// Keys of a tenant with at least this role.
    Tenant(Role, Act),
    /// The holder of `ADMIN_TOKEN`.
    Operator(OperatorAct),
    /// The holder of a callback's token, which is in the path.
    Callback,
    /// The holder of a link to an approval, whose token is in the path: answered with a page.
    ApprovalLink,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document {
    Health,
    OpenApi,
    Schema,
    Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    PutDefinition(DefinitionKind),
    ListDefinitions(DefinitionKind),
    GetDefinition(DefinitionKind),
    DeleteDefinition(DefinitionKind),
    StartRun,
    ListRuns,
    GetRun,
    RunEvents,
    Control(Control),
    RaiseLimits,
    Signal,
    Diagnose,
    ListApprovals,
    GetApproval,
    Decide,
    MakeLink,
    TakeEnvelopes,
    ListDeadLetters,
    GetDeadLetter,
    Redeliver,
    Resolve,
    Discard,
}

impl Act {
    /// Whether it is of the dead letters: the operator's token opens those that no tenant owns.
    pub fn is_of_the_desk(self) -> bool {
        matches!(
            self,
            Self::ListDeadLetters
                | Self::GetDeadLetter
                | Self::Redeliver
                | Self::Resolve
                | Self::Discard
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorAct {
    CreateTenant,
    CreateKey,
    RevokeKey,
}

const LIST: &[&str] = &["limit", "cursor"];

const fn get(path: &'static str, query: &'static [&'static str], act: Act) -> Route {
    Route {
        method: "GET",
        path,
        query,
        body: BodyRule::Unread,
        to: To::Tenant(Role::Reader, act),
    }
}

const fn post(path: &'static str, body: BodyRule, least: Role, act: Act) -> Route {
    Route {
        method: "POST",
        path,
        query: &[],
        body,
        to: To::Tenant(least, act),
    }
}

const fn put(path: &'static str, act: Act) -> Route {
    let to = To::Tenant(Role::Developer, act);
    Route {
        method: "PUT",
        path,
        query: &[],
        body: BodyRule::Required,
        to,
    }
}

const fn delete(path: &'static str, act: Act) -> Route {
    let to = To::Tenant(Role::Developer, act);
    Route {
        method: "DELETE",
        path,
        query: &[],
        body: BodyRule::Unread,
        to,
    }
}

const fn operator(
    method: &'static str,
    path: &'static str,
    body: BodyRule,
    act: OperatorAct,
) -> Route {
    Route {
        method,
        path,
        query: &[],
        body,
        to: To::Operator(act),
    }
}

const fn document(path: &'static str, document: Document) -> Route {
    let to = To::Document(document);
    Route {
        method: "GET",
        path,
        query: &[],
        body: BodyRule::Unread,
        to,
    }
}

const fn approval_link(method: &'static str) -> Route {
    Route {
        method,
        path: "/approvals/{token}",
        query: &[],
        body: BodyRule::Unread,
        to: To::ApprovalLink,
    }
}

/// Every route.
pub const ROUTES: &[Route] = {
    use crate::decide::Control::{Cancel, Pause, Resume, Retry};
    use Act::*;
    use BodyRule::{Optional, Required, Unread};
    use DefinitionKind::{Agent, Tool};
    use Role::{Developer, Operator};
    &[
        get("/v1/tools", LIST, ListDefinitions(Tool)),
        put("/v1/tools/{name}", PutDefinition(Tool)),
        get("/v1/tools/{name}", &["version"], GetDefinition(Tool)),
        delete("/v1/tools/{name}", DeleteDefinition(Tool)),
        get("/v1/agents", LIST, ListDefinitions(Agent)),
        put("/v1/agents/{name}", PutDefinition(Agent)),
        get("/v1/agents/{name}", &["version"], GetDefinition(Agent)),
        delete("/v1/agents/{name}", DeleteDefinition(Agent)),
        post("/v1/runs", Required, Developer, StartRun),
        get(
            "/v1/runs",
            &[
                "status",
                "agent",
                "tag.",
                "created_after",
                "limit",
                "cursor",
            ],
            ListRuns,
        ),
        get("/v1/runs/{run_id}", &[], GetRun),
        get(
            "/v1/runs/{run_id}/events",
            &["after", "order", "cursor", "limit"],
            RunEvents,
        ),
        get("/v1/runs/{run_id}/diagnosis", &[], Diagnose),
        post(
            "/v1/runs/{run_id}/signals/{name}",
            Optional,
            Operator,
            Signal,
        ),
        post(
            "/v1/runs/{run_id}/cancel",
            Optional,
            Operator,
            Control(Cancel),
        ),
        post(
            "/v1/runs/{run_id}/pause",
            Optional,
            Operator,
            Control(Pause),
        ),
        post("/v1/runs/{run_id}/limits", Required, Operator, RaiseLimits),
        post(
            "/v1/runs/{run_id}/resume",
            Optional,
            Operator,
            Control(Resume),
        ),
        post(
            "/v1/runs/{run_id}/retry",
            Optional,
            Operator,
            Control(Retry),
        ),
        get(
            "/v1/approvals",
            &["status", "run_id", "limit", "cursor"],
            ListApprovals,
        ),
        get("/v1/approvals/{approval_id}", &[], GetApproval),
        post("/v1/approvals/{approval_id}", Required, Operator, Decide),
        post(
            "/v1/approvals/{approval_id}/links",
            Optional,
            Operator,
            MakeLink,
        ),
        Route {
            method: "POST",
            path: "/v1/callbacks/{token}",
            query: &[],
            body: Required,
            to: To::Callback,
        },
        approval_link("GET"),
        approval_link("POST"),
        post("/v1/envelopes", Required, Developer, TakeEnvelopes),
        get(
            "/v1/dead-letters",
            &["run_id", "reason", "status", "limit", "cursor"],
            ListDeadLetters,
        ),
        get("/v1/dead-letters/{dead_letter_id}", &[], GetDeadLetter),
        post(
            "/v1/dead-letters/{dead_letter_id}/redeliver",
            Optional,
            Operator,
            Redeliver,
        ),
        post(
            "/v1/dead-letters/{dead_letter_id}/resolve",
            Required,
            Operator,
            Resolve,
        ),
        post(
            "/v1/dead-letters/{dead_letter_id}/discard",
            Optional,
            Operator,
            Discard,
        ),
        operator("POST", "/v1/tenants", Required, OperatorAct::CreateTenant),
        operator(
            "POST",
            "/v1/tenants/{tenant_id}/keys",
            Required,
            OperatorAct::CreateKey,
        ),
        operator(
            "DELETE",
            "/v1/tenants/{tenant_id}/keys/{key_id}",
            Unread,
            OperatorAct::RevokeKey,
        ),
        document("/healthz", Document::Health),
        document("/openapi.json", Document::OpenApi),
        document("/schemas/{name}.json", Document::Schema),
        document("/problems/{name}", Document::Problem),
    ]
};

/// A route, and what its path's variable segments are in the request, in their order.
#[derive(Debug)]
pub struct Found {
    pub route: &'static Route,
    pub params: Vec<String>,
}

/// Finds the route of a request; `path` is as it came, percent-encoded.
pub fn find(method: &str, path: &str) -> Result<Found, Problem> {
    // Split first, decode then: an encoded slash is part of a name.
    let segments: Option<Vec<String>> = path.split('/').map(|s| percent_decode(s, false)).collect();
    let segments = segments.ok_or_else(no_path)?;
    // HEAD is answered as GET is; whoever answers leaves the body out.
    let wanted = if method == "HEAD" { "GET" } else { method };
    let mut allowed = Vec::new();
    for route in ROUTES {
        let Some(params) = captures(route.path, &segments) else {
            continue;
        };
        if route.method == wanted {
            return Ok(Found { route, params });
        }
        allowed.push(route.method);
        if route.method == "GET" {
            allowed.push("HEAD");
        }
    }
    if allowed.is_empty() {
        return Err(no_path());
    }
    let allowed = allowed.join(", ");
    Err(
        Problem::new(METHOD_NOT_ALLOWED, format!("this path has {allowed}"))
            .header("allow", allowed),
    )
}

fn no_path() -> Problem {
    Problem::new(NOT_FOUND, "there is no such path")
}

fn captures(pattern: &str, segments: &[String]) -> Option<Vec<String>> {
    let mut params = Vec::new();
    let mut left = segments.iter();
    for part in pattern.split('/') {
        let segment = left.next()?;
        match part.strip_prefix('{').and_then(|part| part.split_once('}')) {
            None if part == segment => {}
            None => return None,
            Some((_, ending)) => {
                let value = segment
                    .strip_suffix(ending)
                    .filter(|value| !value.is_empty())?;
                params.push(value.to_owned());
            }
        }
    }
    left.next().is_none().then_some(params)
}

/// Decodes `%XX`, and `+` as a space where the text is of a query. None: not UTF-8, or no escape.
pub fn percent_decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => hex_digit(bytes.next()?)? << 4 | hex_digit(bytes.next()?)?,
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(method: &str, path: &str) -> Result<(&'static str, Vec<String>), u16> {
        match find(method, path) {
            Ok(found) => Ok((found.route.path, found.params)),
            Err(problem) => Err(problem.kind.status),
        }
    }

    #[test]
    fn paths_lead_to_their_routes() {
        for (method, path, expected) in [
            ("GET", "/healthz", Ok(("/healthz", vec![]))),
            ("HEAD", "/healthz", Ok(("/healthz", vec![]))),
            ("POST", "/healthz", Err(405)),
            ("OPTIONS", "/v1/runs", Err(405)),
            ("get", "/v1/runs", Err(405)),
            ("GET", "/v1/runs/", Err(404)),
            ("GET", "/v1//runs", Err(404)),
            ("GET", "//v1/runs", Err(404)),
            ("GET", "v1/runs", Err(404)),
            ("GET", "", Err(404)),
            ("GET", "/", Err(404)),
            ("GET", "/v1/%72uns", Ok(("/v1/runs", vec![]))),
            ("GET", "/v1/runs/x", Ok(("/v1/runs/{run_id}", vec!["x"]))),
            (
                "GET",
                "/v1/tools/a%2Fb",
                Ok(("/v1/tools/{name}", vec!["a/b"])),
            ),
            (
                "GET",
                "/v1/tools/a%252Fb",
                Ok(("/v1/tools/{name}", vec!["a%2Fb"])),
            ),
            ("GET", "/v1/tools/a/b", Err(404)),
            (
                "GET",
                "/v1/tools/a+b",
                Ok(("/v1/tools/{name}", vec!["a+b"])),
            ),
            (
                "GET",
                "/v1/tools/%E8%AE%A2",
                Ok(("/v1/tools/{name}", vec!["订"])),
            ),
            ("GET", "/v1/tools/%FF", Err(404)),
            ("GET", "/v1/tools/%zz", Err(404)),
            ("GET", "/v1/tools/%4", Err(404)),
            ("GET", "/v1/tools/..", Ok(("/v1/tools/{name}", vec![".."]))),
            (
                "GET",
                "/schemas/tool.requested.json",
                Ok(("/schemas/{name}.json", vec!["tool.requested"])),
            ),
            ("GET", "/schemas/.json", Err(404)),
            ("GET", "/schemas/tool", Err(404)),
            ("GET", "/dev/runs", Err(404)),
            (
                "DELETE",
                "/v1/tenants/acme/keys/key_1",
                Ok((
                    "/v1/tenants/{tenant_id}/keys/{key_id}",
                    vec!["acme", "key_1"],
                )),
            ),
        ] {
            let expected = expected.map(|(path, params): (_, Vec<&str>)| {
                (path, params.into_iter().map(str::to_owned).collect())
            });
            assert_eq!(at(method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn a_known_path_tells_its_methods() {
        let problem = find("PATCH", "/v1/tools/a").unwrap_err().into_response();
        assert!(
            problem
                .headers
                .contains(&("allow".into(), "PUT, GET, HEAD, DELETE".into()))
        );
    }

    #[test]
    fn no_two_routes_take_the_same_request() {
        for (index, route) in ROUTES.iter().enumerate() {
            let path = route.path.replace(['{', '}'], "x");
            assert_eq!(at(route.method, &path).unwrap().0, route.path);
            let others = ROUTES.iter().skip(index + 1);
            assert!(
                others
                    .clone()
                    .all(|r| (r.method, r.path) != (route.method, route.path))
            );
        }
    }
}
