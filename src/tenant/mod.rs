//! What one tenant owns beside its runs: tools and agents, keys, clients' requests, stray letters,
//! and an index of its runs and their dead letters.
//!
//! All of it is one SQLite database that one object owns, so a call is a turn of that database:
//! synchronous, without a clock and without randomness. A tenant that was never created has no
//! tables; a call about it answers `NotFound` and writes nothing.
//!
//! The index of runs is told by the runs, late and more than once. The longest log wins, and what
//! says nothing new writes no row.
//!
//! Rows written a call, index entries included (what a row costs: see [`schema`]):
//!
//! | call | rows |
//! | --- | --- |
//! | `Create`, `AddTenant` | 1, and the tables' the first time |
//! | `PutDefinition` | 3 for a new version, else 0 |
//! | `DeleteDefinition` | 1 |
//! | `Register` | 1; of a child run 2; with a client's key 2, and at most 20 expired keys |
//! | `Project` | 1 a run that has news, 1 a dead letter or approval that changed (a new one 2) |
//! | `KeepDeadLetter` | 2, doubled 0 |
//! | `SettleStray` | 1 |
//! | `CreateKey`, `RevokeKey` | 1 |
//! | `BeginRequest` | 1, and at most 20 expired keys; begun before 0 |
//! | `FinishRequest` | 1 |
//! | `StaleRuns` | 0 or 1, and at most 200 expired keys |
//! | `ReopenRun`, `ForgetRun` | 1 |
//! | `ModelFailed`, `ModelAnswered` | 1; the first makes the table |
//! | `ModelHealth` | 0; of a model that is tried again after a rest 1 |
//! | every other | 0 |

mod approvals;
mod dead_letters;
mod definitions;
mod directory;
mod keys;
mod models;
mod page;
mod requests;
mod runs;
mod schema;
mod sweep;

#[cfg(test)]
mod definitions_tests;
#[cfg(test)]
mod listing_tests;
#[cfg(test)]
mod letters_tests;
#[cfg(test)]
mod requests_tests;
#[cfg(test)]
mod runs_tests;
#[cfg(test)]
pub(crate) mod testing;

use crate::ports::{Fault, TenantAnswer, TenantCall};
use crate::sql::Sql;

/// Carries one call out. A [`Fault`] left nothing written.
pub fn handle(sql: &impl Sql, call: TenantCall) -> Result<TenantAnswer, Fault> {
    let needs_tenant = !matches!(
        call,
        TenantCall::Create { .. } | TenantCall::AddTenant { .. } | TenantCall::ListTenants { .. }
    );
    if needs_tenant && !schema::is_created(sql)? {
        return Ok(TenantAnswer::NotFound);
    }
    match call {
        TenantCall::Create { now } => schema::create(sql, now),
        TenantCall::PutDefinition {
            kind,
            name,
            definition,
            now,
        } => definitions::put(sql, kind, name, definition, now),
        TenantCall::GetDefinition {
            kind,
            name,
            version,
        } => definitions::get(sql, kind, &name, version),
        TenantCall::ListDefinitions {
            kind,
            limit,
            cursor,
        } => definitions::list(sql, kind, limit, cursor.as_deref()),
        TenantCall::DeleteDefinition { kind, name } => definitions::delete(sql, kind, &name),
        TenantCall::Register {
            run_id,
            maker,
            tags,
            request,
            root_run_id,
            now,
        } => {
            let run = runs::NewRun {
                run_id,
                maker,
                tags,
                root_run_id,
                now,
            };
            runs::register(sql, run, request.as_ref())
        }
        TenantCall::Tools { names } => Ok(TenantAnswer::Tools(definitions::tools(sql, &names)?)),
        TenantCall::Project { projections } => runs::project(sql, &projections),
        TenantCall::ListRuns {
            filter,
            limit,
            cursor,
        } => runs::list(sql, &filter, limit, cursor.as_deref()),
        TenantCall::KeepDeadLetter { letter } => dead_letters::keep(sql, &letter),
        TenantCall::ListDeadLetters {
            filter,
            limit,
            cursor,
        } => dead_letters::list(sql, &filter, limit, cursor.as_deref()),
        TenantCall::FindDeadLetter { dead_letter_id } => dead_letters::find(sql, &dead_letter_id),
        TenantCall::ListApprovals {
            filter,
            limit,
            cursor,
        } => approvals::list(sql, &filter, limit, cursor.as_deref()),
        TenantCall::FindApproval { approval_id } => approvals::find(sql, &approval_id),
        TenantCall::SettleStray {
            dead_letter_id,
            status,
            comment,
            request,
            now,
        } => dead_letters::settle(
            sql,
            &dead_letter_id,
            &status,
            comment,
            request.as_ref(),
            now,
        ),
        TenantCall::CreateKey {
            key_id,
            name,
            role,
            secret_sha256,
            now,
        } => keys::create(sql, &key_id, &name, &role, &secret_sha256, now),
        TenantCall::RevokeKey { key_id, now } => keys::revoke(sql, &key_id, now),
        TenantCall::CheckKey {
            key_id,
            secret_sha256,
        } => keys::check(sql, &key_id, &secret_sha256),
        TenantCall::StaleRuns { before, limit } => sweep::stale(sql, before, limit),
        TenantCall::ReopenRun { run_id } => sweep::reopen(sql, &run_id),
        TenantCall::ForgetRun { run_id } => sweep::forget(sql, &run_id),
        TenantCall::BeginRequest { request, now } => requests::begin(sql, &request, now),
        TenantCall::FinishRequest {
            request,
            status,
            body,
        } => requests::finish(sql, &request, status, &body),
        TenantCall::ModelHealth { models, now } => models::health(sql, &models, now),
        TenantCall::ModelAnswered { model } => models::answered(sql, &model),
        TenantCall::ModelFailed {
            model,
            retry_after_ms,
            now,
        } => models::failed(sql, &model, retry_after_ms, now),
        TenantCall::ListTenants { after, limit } => directory::list(sql, after.as_ref(), limit),
        TenantCall::AddTenant { tenant_id, now } => directory::add(sql, &tenant_id, now),
    }
}

/// A defect or a bound, not a passing trouble: the same call would fail again.
fn broken(operation: &str, subject: &str, message: impl ToString) -> Fault {
    Fault {
        retryable: false,
        ..Fault::new(operation, subject, message.to_string())
    }
}
