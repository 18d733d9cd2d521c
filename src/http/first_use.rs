//! A world in which the tenants that nobody creates come to be when they are first used.

use crate::ports::{Failpoint, Fault, Queue, RunAnswer, RunCall, TenantAnswer, TenantCall, World};
use crate::signed::Signer;
use crate::tool::{Answer, OutboundRequest};
use crate::words::{RunId, TenantId, Timestamp};

use super::auth::dev_tenant;

/// Passes everything on. Where a tenant is not found that exists by the configuration, or that the
/// engine keeps for itself, it is made and asked again.
pub struct FirstUse<'w, W> {
    pub world: &'w W,
    /// Whether there is a tenant for local use.
    pub has_dev: bool,
}

impl<W: World> FirstUse<'_, W> {
    fn makes(&self, tenant_id: &TenantId) -> bool {
        TenantId::reserved(tenant_id.as_str()).is_some()
            || (self.has_dev && dev_tenant().as_ref() == Some(tenant_id))
    }
}

impl<W: World> World for FirstUse<'_, W> {
    fn now(&self) -> Timestamp {
        self.world.now()
    }

    fn random(&self) -> [u8; 32] {
        self.world.random()
    }

    fn secret_random(&self) -> Result<[u8; 32], Fault> {
        self.world.secret_random()
    }

    async fn run(&self, run_id: &RunId, call: &RunCall) -> Result<RunAnswer, Fault> {
        self.world.run(run_id, call).await
    }

    async fn tenant(&self, tenant_id: &TenantId, call: &TenantCall) -> Result<TenantAnswer, Fault> {
        let answer = self.world.tenant(tenant_id, call).await?;
        if !matches!(answer, TenantAnswer::NotFound) || !self.makes(tenant_id) {
            return Ok(answer);
        }
        let create = TenantCall::Create {
            now: self.world.now(),
        };
        // `Exists` says that another first request was quicker, or that the tenant was there all the
        // time: asking again is right for both.
        self.world.tenant(tenant_id, &create).await?;
        self.world.tenant(tenant_id, call).await
    }

    async fn send(&self, queue: Queue, bodies: &[String]) -> Result<(), Fault> {
        self.world.send(queue, bodies).await
    }

    async fn outcome(&self, key: &str) -> Result<Option<String>, Fault> {
        self.world.outcome(key).await
    }

    async fn put_outcome(&self, key: &str, outcome: &str) -> Result<(), Fault> {
        self.world.put_outcome(key, outcome).await
    }

    async fn ask_platform_model(&self, model: &str, input: &str, timeout_ms: i64) -> Answer {
        self.world
            .ask_platform_model(model, input, timeout_ms)
            .await
    }

    async fn call_tool(&self, request: &OutboundRequest) -> Answer {
        self.world.call_tool(request).await
    }

    fn secret(&self, tenant_id: &TenantId, name: &str) -> Option<String> {
        self.world.secret(tenant_id, name)
    }

    fn signer(&self) -> Option<&Signer> {
        self.world.signer()
    }

    fn public_origin(&self) -> Option<&str> {
        self.world.public_origin()
    }

    async fn sleep(&self, ms: i64) {
        self.world.sleep(ms).await;
    }

    fn keeps_every_outcome(&self) -> bool {
        self.world.keeps_every_outcome()
    }

    async fn pass(&self, point: Failpoint) -> Result<(), Fault> {
        self.world.pass(point).await
    }

    fn log(&self, line: &str) {
        self.world.log(line);
    }
}
