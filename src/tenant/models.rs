//! How models do, for all runs of a tenant: one that fails again and again is let rest, and then
//! tried by one worker before the others come back to it.

use crate::ports::{Fault, ModelHealth, TenantAnswer};
use crate::sql::Sql;
use crate::words::Timestamp;

use super::schema::{MODELS, ensure, has_table};

/// Failures in a row after which a model rests.
const FAILURES_MAX: i64 = 3;
const REST_MS: i64 = 5_000;
const REST_MS_MAX: i64 = 300_000;
/// What a provider asks for is believed up to here.
const RETRY_AFTER_MS_MAX: i64 = 3_600_000;
/// How long the one that tries has, before another may.
const PROBE_MS: i64 = 60_000;

/// Whether the models may be asked, in their order. The first that may, after a rest, is kept for
/// whoever asked.
pub fn health(sql: &impl Sql, models: &[String], now: Timestamp) -> Result<TenantAnswer, Fault> {
    let mut all = vec![ModelHealth::default(); models.len()];
    if !has_table(sql, "models")? {
        return Ok(TenantAnswer::ModelHealth(all));
    }
    for (model, health) in models.iter().zip(&mut all) {
        let found = sql.exec(
            "SELECT failures, rests_until FROM models WHERE model = ?1",
            &[model.as_str().into()],
        )?;
        let Some(row) = found.first() else {
            return Ok(TenantAnswer::ModelHealth(all));
        };
        health.troubled = true;
        let rests_until = row.time("rests_until")?;
        if rests_until > now {
            health.rests_until = Some(rests_until);
            continue;
        }
        if row.int("failures")? >= FAILURES_MAX {
            sql.exec(
                "UPDATE models SET rests_until = ?2 WHERE model = ?1",
                &[model.as_str().into(), now.plus_ms(PROBE_MS).into()],
            )?;
        }
        // Whoever asked takes this one; the rest need not be looked at.
        break;
    }
    Ok(TenantAnswer::ModelHealth(all))
}

pub fn answered(sql: &impl Sql, model: &str) -> Result<TenantAnswer, Fault> {
    if has_table(sql, "models")? {
        sql.exec("DELETE FROM models WHERE model = ?1", &[model.into()])?;
    }
    Ok(TenantAnswer::Done)
}

pub fn failed(
    sql: &impl Sql,
    model: &str,
    retry_after_ms: Option<i64>,
    now: Timestamp,
) -> Result<TenantAnswer, Fault> {
    ensure(sql, MODELS)?;
    let found = sql.exec(
        "SELECT failures FROM models WHERE model = ?1",
        &[model.into()],
    )?;
    let before = found.first().map(|row| row.int("failures")).transpose()?;
    let failures = before.unwrap_or(0).saturating_add(1);
    let rests_ms = match retry_after_ms {
        Some(ms) => ms.clamp(0, RETRY_AFTER_MS_MAX),
        None if failures < FAILURES_MAX => 0,
        None => {
            let doublings = (failures - FAILURES_MAX).clamp(0, 10);
            REST_MS.saturating_mul(1 << doublings).min(REST_MS_MAX)
        }
    };
    sql.exec(
        "INSERT INTO models (model, failures, rests_until) VALUES (?1, ?2, ?3)
         ON CONFLICT (model) DO UPDATE SET failures = ?2, rests_until = ?3",
        &[model.into(), failures.into(), now.plus_ms(rests_ms).into()],
    )?;
    Ok(TenantAnswer::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::testing::Db;

    const SECOND: i64 = 1_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_ms(seconds * SECOND)
    }

    fn ask(sql: &impl Sql, seconds: i64) -> Vec<Option<i64>> {
        let models = ["a".to_owned(), "b".to_owned()];
        match health(sql, &models, at(seconds)).unwrap() {
            TenantAnswer::ModelHealth(all) => all
                .into_iter()
                .map(|health| health.rests_until.map(|until| until.ms() / SECOND))
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_model_that_fails_again_and_again_rests_and_is_tried_by_one() {
        let sql = Db::new();
        assert_eq!(ask(&sql, 0), [None, None]);
        for _ in 0..2 {
            failed(&sql, "a", None, at(0)).unwrap();
            assert_eq!(ask(&sql, 0), [None, None]);
        }
        failed(&sql, "a", None, at(0)).unwrap();
        assert_eq!(ask(&sql, 0), [Some(5), None]);
        // The first after the rest tries; the others wait for what it finds.
        assert_eq!(ask(&sql, 6), [None, None]);
        assert_eq!(ask(&sql, 7), [Some(66), None]);
        failed(&sql, "a", None, at(8)).unwrap();
        assert_eq!(ask(&sql, 9), [Some(18), None]);
        answered(&sql, "a").unwrap();
        assert_eq!(ask(&sql, 9), [None, None]);
    }

    #[test]
    fn a_provider_s_own_wish_is_kept() {
        let sql = Db::new();
        failed(&sql, "a", Some(30 * SECOND), at(0)).unwrap();
        assert_eq!(ask(&sql, 29), [Some(30), None]);
        assert_eq!(ask(&sql, 30), [None, None]);
        assert_eq!(ask(&sql, 30), [None, None]);
        failed(&sql, "b", Some(9_000 * SECOND), at(0)).unwrap();
        answered(&sql, "c").unwrap();
        failed(&sql, "a", Some(9_000 * SECOND), at(0)).unwrap();
        assert_eq!(ask(&sql, 1), [Some(3_600), Some(3_600)]);
    }
}
