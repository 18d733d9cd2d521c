//! What the compiler cannot say of the sources.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The rooms of `lib.rs`, in their order.
fn rooms() -> Vec<String> {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    lib.lines()
        .filter_map(|line| {
            line.strip_prefix("pub mod ")
                .or_else(|| line.strip_prefix("mod "))
        })
        .map(|rest| rest.trim_end_matches(';').to_owned())
        .collect()
}

fn room_of(path: &Path) -> Option<String> {
    let inside = path.strip_prefix(root().join("src")).unwrap();
    let first = inside.iter().next()?.to_str()?;
    Some(first.trim_end_matches(".rs").to_owned())
}

#[test]
fn a_room_uses_only_what_stands_above_it() {
    let rooms = rooms();
    assert!(rooms.len() > 10, "lib.rs was not understood: {rooms:?}");
    let place = |room: &str| rooms.iter().position(|known| known == room);
    let mut wrong = Vec::new();
    for path in sources(&root().join("src")) {
        let Some(own) = room_of(&path).and_then(|room| place(&room)) else {
            continue;
        };
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for used in code.split("crate::").skip(1) {
            let name: String = used
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect();
            if let Some(other) = place(&name)
                && other > own
            {
                wrong.push(format!("{} uses {name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_core_names_no_platform_no_clock_and_no_chance() {
    let banned = [
        "worker::",
        "worker_sys",
        "wasm_bindgen",
        "js_sys",
        "SystemTime::now",
        "Instant::now",
        "thread::sleep",
        "getrandom",
        " rand::",
    ];
    let mut wrong = Vec::new();
    for path in sources(&root().join("src")) {
        if room_of(&path).as_deref() == Some("edge") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            if banned.iter().any(|word| line.contains(word)) {
                wrong.push(format!("{}: {line}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_edge_avoids_what_hangs_an_isolate() {
    let banned = [
        ".one()",
        "SystemTime",
        "std::time::Instant",
        "SqlStorageValue::Boolean",
        ".abort(",
    ];
    for path in sources(&root().join("src/edge")) {
        let text = fs::read_to_string(&path).unwrap();
        for word in banned {
            assert!(!text.contains(word), "{} has {word}", path.display());
        }
    }
}

#[test]
fn every_binding_the_edge_names_is_in_wrangler_toml() {
    let wrangler = fs::read_to_string(root().join("wrangler.toml")).unwrap();
    for name in [
        "PLAN", "WORK", "EVENTS", "DEAD", "RUN", "TENANT", "OUTCOMES",
    ] {
        assert!(
            wrangler.contains(&format!("\"{name}\"")),
            "wrangler.toml has no {name}"
        );
    }
}
