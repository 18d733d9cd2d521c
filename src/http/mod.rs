//! The HTTP API: from a request to its answer, with no word of the platform.
//!
//! ```text
//! respond ─► routes ─► auth ─► query · body ─► runs · log · definitions · envelopes · dead_letters · tenants
//!               │                                        │
//!               └─► documents                            └─► flow · ports        problem, on any way out
//! ```

mod approval_links;
mod approval_page;
mod approvals;
pub mod auth;
mod callbacks;
mod control;
mod dead_letters;
mod definitions;
mod documents;
mod envelopes;
pub mod event_stream;
mod first_use;
pub mod headers;
mod log;
mod once;
mod page;
pub mod problem;
pub mod routes;
mod runs;
mod tenants;

#[cfg(test)]
mod log_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use serde_json::Map;

use crate::flow::stray;
use crate::json::{self, Value};
use crate::ports::{Fault, World};
use crate::run::event::RequestRef;
use crate::words::limits::VALUE_BYTES_MAX;
use crate::words::{RunId, TenantId, sha256_hex};

use event_stream::EventStream;
use first_use::FirstUse;
use headers::{Headers, Traceparent};
use page::Query;
use problem::{INVALID_JSON, Problem};
use routes::{Act, BodyRule, OperatorAct, Route, To};

pub use routes::ROUTES;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Such as `https://dormouse.example`; none where it is not known.
    pub origin: Option<String>,
    /// Percent-encoded.
    pub path: String,
    /// What follows the `?`, percent-encoded.
    pub query: Option<String>,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Body,
}

/// A request's body.
#[derive(Clone, Debug)]
pub enum Body {
    Bytes(Vec<u8>),
    /// More than [`crate::words::limits::REQUEST_BODY_BYTES_MAX`]; the rest was not read.
    TooLarge,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// What follows the body, piece by piece.
    pub stream: Option<EventStream>,
}

/// What the deployment says.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Opens `/v1/tenants`; nothing else does.
    pub admin_token: Option<String>,
    /// The key of the tenant `dev`, which is made when it is first used.
    pub dev_api_key: Option<String>,
    pub version: &'static str,
}

/// Answers a request.
pub async fn respond<W: World>(world: &W, config: &Config, request: Request) -> Response {
    let span = Traceparent::of_request(Headers(&request.headers), world.random()).to_string();
    let has_dev = config.dev_api_key.is_some();
    let answered = answer(&FirstUse { world, has_dev }, config, &request, &span).await;
    let response = answered.unwrap_or_else(|problem| {
        if let Some(cause) = problem.cause() {
            world.log(&format!(
                "{} answered {}: {cause}",
                request.method, problem.kind.status
            ));
        }
        problem.into_response()
    });
    let mut response = response.header("traceparent", span);
    if request.method == "HEAD" {
        response.body.clear();
        response.stream = None;
    }
    response
}

async fn answer<W: World>(
    world: &FirstUse<'_, W>,
    config: &Config,
    request: &Request,
    span: &str,
) -> Result<Response, Problem> {
    let found = routes::find(&request.method, &request.path)?;
    let headers = Headers(&request.headers);
    let params = found.params.as_slice();
    // Read only once it is known who asks.
    let call = || {
        let (query, body) = read(request, found.route)?;
        Ok::<_, Problem>(Call {
            world,
            headers,
            params,
            query,
            body,
            span,
            origin: request.origin.as_deref(),
        })
    };
    match found.route.to {
        To::Document(document) => documents::document(document, params, config),
        To::Tenant(least, act) => {
            let caller = if act.is_of_the_desk() && auth::operator(config, headers).is_ok() {
                auth::Caller {
                    tenant_id: stray::operator()?,
                    role: auth::Role::Operator,
                    name: stray::OPERATOR.to_owned(),
                }
            } else {
                auth::tenant(world, config, headers).await?
            };
            caller.role.require(least)?;
            let call = call()?;
            act_of_tenant(&call, &caller, act).await
        }
        To::ApprovalLink => {
            let token = params.first().map_or("", String::as_str);
            approval_links::follow(world, request, token).await
        }
        To::Callback => {
            let token = params.first().map_or("", String::as_str);
            let claims = callbacks::claims(world, token)?;
            callbacks::take(&call()?, claims).await
        }
        To::Operator(act) => {
            auth::operator(config, headers)?;
            let call = call()?;
            match act {
                OperatorAct::CreateTenant => tenants::create(&call).await,
                OperatorAct::CreateKey => tenants::create_key(&call, config).await,
                OperatorAct::RevokeKey => tenants::revoke_key(&call).await,
            }
        }
    }
}

async fn act_of_tenant<W: World>(
    call: &Call<'_, W>,
    caller: &auth::Caller,
    act: Act,
) -> Result<Response, Problem> {
    let tenant_id = &caller.tenant_id;
    match act {
        Act::PutDefinition(kind) => definitions::put(call, tenant_id, kind).await,
        Act::ListDefinitions(kind) => definitions::list(call, tenant_id, kind).await,
        Act::GetDefinition(kind) => definitions::get(call, tenant_id, kind).await,
        Act::DeleteDefinition(kind) => definitions::delete(call, tenant_id, kind).await,
        Act::StartRun => runs::start(call, tenant_id).await,
        Act::ListRuns => runs::list(call, tenant_id).await,
        Act::GetRun => runs::get(call, tenant_id).await,
        Act::RunEvents => log::events(call, tenant_id).await,
        Act::Control(what) => control::control(call, tenant_id, what).await,
        Act::RaiseLimits => control::raise_limits(call, tenant_id).await,
        Act::Signal => control::signal(call, tenant_id).await,
        Act::Diagnose => control::diagnosis(call, tenant_id).await,
        Act::ListApprovals => approvals::list(call, tenant_id).await,
        Act::GetApproval => approvals::get(call, tenant_id).await,
        Act::Decide => approvals::decide(call, caller).await,
        Act::MakeLink => approvals::link(call, tenant_id).await,
        Act::TakeEnvelopes => envelopes::take(call, tenant_id).await,
        Act::ListDeadLetters => dead_letters::list(call, tenant_id).await,
        Act::GetDeadLetter => dead_letters::get(call, tenant_id).await,
        Act::Redeliver => dead_letters::redeliver(call, tenant_id).await,
        Act::Resolve => dead_letters::resolve(call, tenant_id).await,
        Act::Discard => dead_letters::discard(call, tenant_id).await,
    }
}

/// The query and the body, as far as the route has them.
fn read(request: &Request, route: &Route) -> Result<(Query, Value), Problem> {
    let query = Query::read(request.query.as_deref(), route.query)?;
    if route.body == BodyRule::Unread {
        return Ok((query, Value::Null));
    }
    let Body::Bytes(bytes) = &request.body else {
        return Err(Problem::body_too_large());
    };
    if bytes.is_empty() && route.body == BodyRule::Optional {
        return Ok((query, Value::Object(Map::new())));
    }
    Headers(&request.headers).require_json()?;
    let body = json::read(bytes).map_err(|errors| Problem::invalid(INVALID_JSON, errors))?;
    Ok((query, body))
}

/// A request that was let in, on its way to whoever answers it.
struct Call<'a, W> {
    world: &'a FirstUse<'a, W>,
    headers: Headers<'a>,
    /// The variable segments of the path.
    params: &'a [String],
    query: Query,
    body: Value,
    /// The `traceparent` of the request's own span.
    span: &'a str,
    /// Where the request reached this service.
    origin: Option<&'a str>,
}

impl<W> Call<'_, W> {
    fn param(&self, at: usize) -> &str {
        self.params.get(at).map_or("", String::as_str)
    }

    /// A text of the body.
    fn text(&self, name: &str) -> Option<String> {
        self.body.get(name)?.as_str().map(str::to_owned)
    }

    /// The run that the path names. What is no id names nothing.
    fn run_id(&self) -> Result<RunId, Problem> {
        RunId::parse(self.param(0)).map_err(|_| Problem::not_found())
    }

    /// The client's key for this request, if it gave one. `route` names what the key is good for:
    /// the route, and the one thing that is settled by it.
    fn request_ref(&self, route: impl Into<String>) -> Result<Option<RequestRef>, Problem> {
        let Some(key) = self.headers.idempotency_key()? else {
            return Ok(None);
        };
        let fingerprint = sha256_hex(json::canonical(&self.body).as_bytes());
        Ok(Some(RequestRef {
            route: route.into(),
            key,
            fingerprint,
        }))
    }
}

impl Response {
    fn new(status: u16, content_type: &str, body: String) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body,
            stream: None,
        }
        .header("content-type", content_type)
        .header("cache-control", "no-store")
    }

    fn json(status: u16, body: String) -> Self {
        Self::new(status, "application/json; charset=utf-8", body)
    }

    fn problem(status: u16, body: String) -> Self {
        Self::new(status, "application/problem+json; charset=utf-8", body)
    }

    fn empty(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: String::new(),
            stream: None,
        }
    }

    /// An answer that was given before.
    fn replay(status: u16, body: String) -> Self {
        let again = if status < 400 {
            Self::json(status, body)
        } else {
            Self::problem(status, body)
        };
        again.replayed(true)
    }

    fn replayed(self, replayed: bool) -> Self {
        if replayed {
            self.header("idempotent-replayed", "true")
        } else {
            self
        }
    }

    fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

/// Refuses a value above the bound of inputs, results and payloads.
fn fits(what: &str, value: Option<&Value>) -> Result<(), Problem> {
    match value {
        Some(value) if json::bytes_len(value) > VALUE_BYTES_MAX => {
            Err(Problem::too_large(what, VALUE_BYTES_MAX))
        }
        _ => Ok(()),
    }
}

/// A tenant's object gave an answer that has nothing to do with the question: a defect.
fn unexpected(operation: &str, tenant_id: &TenantId) -> Problem {
    Fault {
        retryable: false,
        ..Fault::new(
            operation,
            tenant_id.as_str(),
            "got an answer of another kind",
        )
    }
    .into()
}
