//! Tenants and their keys: for the operator alone.

use serde_json::json;

use crate::json::{self, Value, Violation};
use crate::ports::{Fault, TenantAnswer, TenantCall, World};
use crate::schema;
use crate::words::{KeyId, TenantId, sha256, sha256_hex};

use crate::flow::stray;

use super::auth::{Role, key_text};
use super::once::{Begun, begin, finish, once};
use super::problem::{INVALID_KEY, INVALID_TENANT, KEY_NOT_SHOWN, Problem, TENANT_EXISTS};
use super::{Call, Config, Response, unexpected};

/// The role of a key for which none is named: what an application needs.
const ROLE_DEFAULT: Role = Role::Developer;

pub async fn create<W: World>(call: &Call<'_, W>) -> Result<Response, Problem> {
    let request = call.request_ref("POST /v1/tenants")?;
    let invalid = |errors| Problem::invalid(INVALID_TENANT, errors);
    schema::validate("tenant-request", &call.body).map_err(invalid)?;
    let text = call
        .body
        .get("tenant_id")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let tenant_id = TenantId::parse(text)
        .map_err(|error| invalid(vec![Violation::new("/tenant_id", error.to_string())]))?;
    let directory = stray::directory()?;
    once(call.world, &directory, request, async {
        let now = call.world.now();
        let made = call
            .world
            .tenant(&tenant_id, &TenantCall::Create { now })
            .await?;
        let add = TenantCall::AddTenant {
            tenant_id: tenant_id.clone(),
            now,
        };
        let listed = call.world.tenant(&directory, &add).await?;
        match (made, listed) {
            // Where one of the two is new, whoever was about to make the tenant did not finish.
            (TenantAnswer::Done, TenantAnswer::Done | TenantAnswer::Exists)
            | (TenantAnswer::Exists, TenantAnswer::Done) => {
                let body = json!({ "tenant_id": tenant_id.as_str() });
                Ok(Response::json(201, json::write(&body)))
            }
            (TenantAnswer::Exists, TenantAnswer::Exists) => {
                let detail = format!("there is a tenant {tenant_id} already");
                Err(Problem::new(TENANT_EXISTS, detail))
            }
            _ => Err(unexpected("make a tenant", &tenant_id)),
        }
    })
    .await
}

pub async fn create_key<W: World>(
    call: &Call<'_, W>,
    config: &Config,
) -> Result<Response, Problem> {
    let tenant_id = tenant_id(call)?;
    let request = call.request_ref("POST /v1/tenants/{tenant_id}/keys")?;
    let invalid = |errors| Problem::invalid(INVALID_KEY, errors);
    schema::validate("key-request", &call.body).map_err(invalid)?;
    let member = |name: &str| call.body.get(name).and_then(Value::as_str);
    let role = match member("role").map(Role::parse) {
        None => ROLE_DEFAULT,
        Some(Some(role)) => role,
        Some(None) => {
            let known = Role::ALL.map(Role::as_str).join(", ");
            let message = format!("expected one of {known}");
            return Err(invalid(vec![Violation::new("/role", message)]));
        }
    };
    let name = member("name").unwrap_or_default();
    let again = |body: &str| shown_again(call, config, &tenant_id, body);
    if let Some(request) = &request
        && let Begun::Before { body, .. } = begin(call.world, &tenant_id, request).await?
    {
        return again(&body);
    }
    let now = call.world.now();
    let [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, ..] = call.world.random();
    let key_id = KeyId::new(now, [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9]);
    let secret = match &request {
        None => call.world.secret_random()?,
        Some(request) => secret_for(config, &tenant_id, &key_id, &request.key),
    };
    let key = key_text(&tenant_id, &key_id, secret);
    let secret_sha256 = sha256_hex(key.as_bytes());
    let create = TenantCall::CreateKey {
        key_id: key_id.clone(),
        name: name.to_owned(),
        role: role.as_str().to_owned(),
        secret_sha256: secret_sha256.clone(),
        now,
    };
    match call.world.tenant(&tenant_id, &create).await? {
        TenantAnswer::Done => {}
        TenantAnswer::NotFound => return Err(Problem::not_found()),
        _ => return Err(unexpected("make a key", &tenant_id)),
    }
    let kept = json!({
        "key_id": key_id.as_str(),
        "name": name,
        "role": role.as_str(),
        "secret_sha256": secret_sha256,
    });
    if let Some(request) = request {
        let body = json::write(&kept);
        if let Some((_, body)) = finish(call.world, &tenant_id, request, 201, &body).await {
            // Another was first with the same request: its key is the answer, and ours is nobody's.
            let revoke = TenantCall::RevokeKey { key_id, now };
            call.world.tenant(&tenant_id, &revoke).await?;
            return again(&body);
        }
    }
    Ok(shown(&kept, &key))
}

/// The secret of a key that a client may ask for again. It is made from what the client and the
/// deployment know and stored nowhere, so that the key can be shown again and not be stolen from
/// here.
fn secret_for(config: &Config, tenant_id: &TenantId, key_id: &KeyId, client_key: &str) -> [u8; 32] {
    let token = config.admin_token.as_deref().unwrap_or_default();
    // JSON, so that no two sets of parts run together into one text.
    let parts = json!([
        "dormouse key",
        token,
        tenant_id.as_str(),
        key_id.as_str(),
        client_key
    ]);
    sha256(json::canonical(&parts).as_bytes())
}

/// The answer of before, from what was kept of it.
fn shown_again<W: World>(
    call: &Call<'_, W>,
    config: &Config,
    tenant_id: &TenantId,
    kept: &str,
) -> Result<Response, Problem> {
    let broken = || {
        let subject = tenant_id.as_str();
        Fault {
            retryable: false,
            ..Fault::new("show a key", subject, "what was kept is broken")
        }
    };
    let kept = json::read_stored(kept.as_bytes()).map_err(|_| broken())?;
    let member = |name: &str| kept.get(name).and_then(Value::as_str).unwrap_or_default();
    let key_id = KeyId::parse(member("key_id")).map_err(|_| broken())?;
    let client_key = call.headers.idempotency_key()?.unwrap_or_default();
    let secret = secret_for(config, tenant_id, &key_id, &client_key);
    let key = key_text(tenant_id, &key_id, secret);
    if sha256_hex(key.as_bytes()) != member("secret_sha256") {
        let detail = "the key was made under another ADMIN_TOKEN, without which it is not known";
        return Err(Problem::new(KEY_NOT_SHOWN, detail).with("key_id", key_id.as_str()));
    }
    Ok(shown(&kept, &key).replayed(true))
}

fn shown(kept: &Value, key: &str) -> Response {
    let body = json!({
        "key_id": kept.get("key_id"),
        "key": key,
        "name": kept.get("name"),
        "role": kept.get("role"),
    });
    Response::json(201, json::write(&body))
}

pub async fn revoke_key<W: World>(call: &Call<'_, W>) -> Result<Response, Problem> {
    let tenant_id = tenant_id(call)?;
    let key_id = KeyId::parse(call.param(1)).map_err(|_| Problem::not_found())?;
    let revoke = TenantCall::RevokeKey {
        key_id,
        now: call.world.now(),
    };
    match call.world.tenant(&tenant_id, &revoke).await? {
        TenantAnswer::Done => Ok(Response::empty(204)),
        TenantAnswer::NotFound => Err(Problem::not_found()),
        _ => Err(unexpected("revoke a key", &tenant_id)),
    }
}

fn tenant_id<W>(call: &Call<'_, W>) -> Result<TenantId, Problem> {
    TenantId::parse(call.param(0)).map_err(|_| Problem::not_found())
}
