//! Logs that earlier releases wrote: each must fold for ever, to the run that it was then.
//!
//! `WRITE_GOLDEN=v2 cargo test --test it golden` writes those of the release at hand; they are added
//! once for a release and never changed afterwards.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use dormouse::json::{self, Value};
use dormouse::run::{Row, fold, view};

use crate::support::rng::Rng;
use crate::support::scenario::{play, random_plan, random_thinker};
use crate::support::world::Weather;

const SEEDS: u64 = 40;
/// Of runs with models there are logs from these seeds on.
const MODEL_SEEDS: u64 = 30;

fn compat() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", "compat"]
        .iter()
        .collect()
}

#[test]
fn old_logs_fold_to_the_runs_they_were() {
    if let Ok(release) = std::env::var("WRITE_GOLDEN") {
        write(&release);
    }
    let mut read = 0;
    let mut missing: BTreeSet<&str> = dormouse::schema::embedded::event_types().collect();
    for release in fs::read_dir(compat()).expect("golden logs") {
        for file in fs::read_dir(release.expect("a release").path()).expect("its logs") {
            let path = file.expect("a file").path();
            let text = fs::read(&path).expect("a log");
            let golden = json::read_stored(&text).expect("JSON");
            for row in rows(&golden) {
                missing.retain(|kind| !row.body.contains(&format!("{{\"{kind}\":")));
            }
            let state = fold::fold(&rows(&golden))
                .unwrap_or_else(|corrupt| panic!("{}: {corrupt}", path.display()))
                .expect("a run");
            let shown = serde_json::to_string(&view::run(&state)).expect("a view");
            let shown = json::read_stored(shown.as_bytes()).expect("JSON");
            let wanted = &golden["run"];
            assert!(holds(&shown, wanted), "{}: {shown}", path.display());
            read += 1;
        }
    }
    assert!(read > 0, "there are no golden logs");
    assert!(missing.is_empty(), "no golden log has {missing:?}");
    println!("{read} golden logs");
}

fn rows(golden: &Value) -> Vec<Row> {
    let rows = golden["rows"].as_array().expect("rows");
    rows.iter()
        .map(|row| Row {
            seq: row["seq"].as_u64().expect("a number"),
            body: row["body"].as_str().expect("text").to_owned(),
        })
        .collect()
}

/// Whether all that was shown then is shown now. More may have come.
fn holds(now: &Value, then: &Value) -> bool {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => then
            .iter()
            .all(|(name, then)| now.get(name).is_some_and(|now| holds(now, then))),
        (Value::Array(now), Value::Array(then)) => {
            now.len() == then.len() && now.iter().zip(then).all(|(now, then)| holds(now, then))
        }
        (now, then) => json::same(now, then),
    }
}

fn write(release: &str) {
    let under = compat().join(release);
    fs::create_dir_all(&under).expect("a directory");
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed);
        let plans = if seed < MODEL_SEEDS {
            vec![random_plan(&mut rng), random_plan(&mut rng)]
        } else {
            vec![random_thinker(&mut rng), random_thinker(&mut rng)]
        };
        let sim = play(seed, plans, Weather::STORM, None);
        for (number, object) in sim.0.borrow().objects.values().enumerate() {
            let rows = object.disk.rows.borrow();
            let Some(state) = fold::fold(&rows).expect("a log") else {
                continue;
            };
            let rows: Vec<Value> = rows
                .iter()
                .map(|row| serde_json::json!({ "seq": row.seq, "body": row.body }))
                .collect();
            let run = serde_json::to_string(&view::run(&state)).expect("a view");
            let rows = json::write(&Value::Array(rows));
            let file = under.join(format!("{seed:02}-{number}.json"));
            fs::write(file, format!("{{\"rows\":{rows},\"run\":{run}}}\n")).expect("written");
        }
    }
}
