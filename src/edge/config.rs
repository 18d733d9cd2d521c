//! The Worker's variables and secrets, by name.

use wasm_bindgen::JsValue;

use crate::signed::Signer;

use super::js;

/// How long a consumer waits for its messages before it lets the rest go on in the background,
/// where nothing else is said: what a queue's consumer has, less a minute.
/// https://developers.cloudflare.com/queues/platform/limits/
const PATIENCE_MS: u32 = 840_000;

#[derive(Clone)]
pub struct Config {
    pub admin_token: Option<String>,
    pub dev_api_key: Option<String>,
    #[cfg(feature = "test-seams")]
    pub test_seams: bool,
    pub allowed_inward_hosts: Vec<String>,
    pub keeps_every_outcome: bool,
    pub consumer_patience_ms: u32,
    /// Where clients reach this service; otherwise it is where each run was started.
    pub public_origin: Option<String>,
    pub signer: Option<Signer>,
}

impl Config {
    pub fn read(env: &JsValue) -> Self {
        let text = |name: &str| var(env, name).filter(|text| !text.is_empty());
        Self {
            admin_token: text("ADMIN_TOKEN"),
            dev_api_key: text("DEV_API_KEY"),
            #[cfg(feature = "test-seams")]
            test_seams: text("TEST_SEAMS").as_deref() == Some("1"),
            allowed_inward_hosts: text("ALLOWED_INWARD_HOSTS")
                .unwrap_or_default()
                .split(',')
                .map(|host| host.trim().to_ascii_lowercase())
                .filter(|host| !host.is_empty())
                .collect(),
            keeps_every_outcome: text("IDEMPOTENCY_CACHE").as_deref() == Some("all"),
            consumer_patience_ms: text("CONSUMER_PATIENCE_MS")
                .and_then(|ms| ms.parse().ok())
                .unwrap_or(PATIENCE_MS),
            public_origin: text("PUBLIC_URL").map(|url| url.trim_end_matches('/').to_owned()),
            signer: signer(text),
        }
    }
}

/// Signs with `SIGNING_KEY`: keys separated by commas, the first of which signs. A deployment without
/// it signs with the operator's token, a local one with its key.
fn signer(text: impl Fn(&str) -> Option<String>) -> Option<Signer> {
    if let Some(keys) = text("SIGNING_KEY") {
        return Signer::new(keys.split(',').map(|key| key.trim().to_owned()));
    }
    Signer::new(text("ADMIN_TOKEN").or_else(|| text("DEV_API_KEY")))
}

/// A secret of a tenant: `TENANT_SECRETS` is one Worker secret, `{ "<tenant>": { "<NAME>": "…" } }`.
/// Read when it is needed and kept nowhere.
pub fn tenant_secret(env: &JsValue, tenant: &str, name: &str) -> Option<String> {
    let text = var(env, "TENANT_SECRETS")?;
    let all = crate::json::read(text.as_bytes()).ok()?;
    all.get(tenant)?.get(name)?.as_str().map(str::to_owned)
}

fn var(env: &JsValue, name: &str) -> Option<String> {
    js::get(env, name)?.as_string()
}
