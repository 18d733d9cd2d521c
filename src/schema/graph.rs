//! A schema as a graph: which subschemas it holds, which of them look at the same place of the
//! instance, and which at a place below. It bounds the work a schema can cause, since references
//! make a small document say a lot: a loop, or a doubling at each of thirty levels.

use std::collections::HashMap;

use crate::json::{Value, pointer};

/// A place where a subschema stands, with what it leads to.
struct Node {
    /// Itself, and what it applies from outside this schema.
    own: u64,
    /// How deep what it applies from outside nests, for each level of the instance.
    nested_by_depth: u32,
    /// Subschemas applied to the same place of the instance.
    here: Vec<usize>,
    /// Subschemas applied to places below it.
    below: Vec<usize>,
}

/// What a schema is made of. Index 0 is the schema itself.
pub(super) struct Graph {
    nodes: Vec<Node>,
    /// Patterns, as (pointer, text); a key of `patternProperties` counts as one.
    pub patterns: Vec<(String, String)>,
    /// References that lead nowhere in this document: (pointer, text).
    pub foreign: Vec<(String, String)>,
    /// `$id` of subschemas, which would make them documents of their own: pointers.
    pub inner_ids: Vec<String>,
}

/// What applying a subschema can take at most, on the way from one place of an instance to a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    /// Subschemas looked at.
    pub count: u64,
    /// Subschemas within subschemas: what the engine's stack holds.
    pub nested: u32,
}

/// What a schema can take.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    /// How many subschemas at most look at one place of an instance.
    pub at_one_place: u64,
    by_depth: Vec<Work>,
}

impl Costs {
    /// For an instance that is `depth` deep.
    pub fn at(&self, depth: usize) -> Work {
        self.by_depth
            .get(depth)
            .or(self.by_depth.last())
            .copied()
            .unwrap_or_default()
    }
}

/// More subschemas than asked for.
pub(super) struct TooMany;

/// Keywords that hold one subschema, or an array of them, and look at the same place.
const HERE: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];
/// Keywords that hold one subschema, or an array of them, and look below.
const BELOW: [&str; 9] = [
    "prefixItems",
    "items",
    "contains",
    "additionalItems",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];
/// Keywords that hold subschemas by name and look below.
const BELOW_BY_NAME: [&str; 2] = ["properties", "patternProperties"];
/// Keywords that hold subschemas by name and look at the same place.
const HERE_BY_NAME: [&str; 2] = ["dependentSchemas", "dependencies"];
/// Keywords that only keep subschemas.
const KEPT_BY_NAME: [&str; 2] = ["$defs", "definitions"];
/// Keywords that apply a subschema by reference.
const REFERENCES: [&str; 3] = ["$ref", "$dynamicRef", "$recursiveRef"];

/// Where the specification's own schemas are; the engine holds them.
const META: [&str; 2] = [
    "https://json-schema.org/draft",
    "http://json-schema.org/draft",
];
/// Subschemas that a reference to one of those applies at one place, at most.
const META_COST: u64 = 100;
/// Subschemas within subschemas of those, for each level of the instance, at most.
const META_NESTED: u32 = 8;

impl Graph {
    /// Reads `schema`, up to `subschemas_max` of them. Its nesting must be bounded already.
    pub fn read(schema: &Value, subschemas_max: usize) -> Result<Self, TooMany> {
        let draft = schema
            .get("$schema")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let id_keyword = if draft.contains("draft-04") {
            "id"
        } else {
            "$id"
        };
        let mut reading = Reading {
            graph: Graph {
                nodes: Vec::new(),
                patterns: Vec::new(),
                foreign: Vec::new(),
                inner_ids: Vec::new(),
            },
            places: HashMap::new(),
            anchors: HashMap::new(),
            references: Vec::new(),
            subschemas_max,
            id_keyword,
        };
        reading.subschema(schema, String::new())?;
        let own_id = schema
            .get(id_keyword)
            .and_then(Value::as_str)
            .unwrap_or_default();
        // A reference may lead to a place that no keyword calls a subschema; reading that may find
        // more references.
        while let Some((from, at, text)) = reading.references.pop() {
            let local = match text.strip_prefix(own_id.trim_end_matches('#')) {
                Some(rest) if rest.is_empty() || rest.starts_with('#') => rest,
                _ => text.as_str(),
            };
            if META.iter().any(|meta| local.starts_with(meta)) {
                if let Some(node) = reading.graph.nodes.get_mut(from) {
                    node.own = META_COST;
                    node.nested_by_depth = META_NESTED;
                }
                continue;
            }
            let fragment = local.strip_prefix('#').or(local.is_empty().then_some(""));
            let target = match fragment.map(percent_decoded) {
                Some(path) if path.is_empty() || path.starts_with('/') => {
                    match (
                        reading.places.get(&path).copied(),
                        pointer::get(schema, &path),
                    ) {
                        (Some(known), _) => Some(known),
                        (None, Some(found)) => Some(reading.subschema(found, path)?),
                        (None, None) => None,
                    }
                }
                Some(anchor) => reading.anchors.get(&anchor).copied(),
                None => None,
            };
            match (target, reading.graph.nodes.get_mut(from)) {
                (Some(target), Some(node)) => node.here.push(target),
                _ => reading.graph.foreign.push((at, text)),
            }
        }
        Ok(reading.graph)
    }

    /// How many subschemas it has.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What applying the schema can take, for instances of up to `depth_max`. `None` when a
    /// subschema leads back to itself without going below.
    pub fn costs(&self, depth_max: usize) -> Option<Costs> {
        let order = self.order()?;
        let mut at_one_place = 0;
        let mut below = vec![Work::default(); self.nodes.len()];
        let mut by_depth = Vec::new();
        for levels in 1..=u32::try_from(depth_max)
            .unwrap_or(u32::MAX)
            .saturating_add(1)
        {
            let mut now = vec![Work::default(); self.nodes.len()];
            for &at in &order {
                let Some(node) = self.nodes.get(at) else {
                    continue;
                };
                let here = node.here.iter().filter_map(|&next| now.get(next));
                let down = node.below.iter().filter_map(|&next| below.get(next));
                let nested = node.nested_by_depth.saturating_mul(levels);
                let mut work = Work {
                    count: node.own,
                    nested,
                };
                for inner in here.chain(down) {
                    work.count = work.count.saturating_add(inner.count);
                    work.nested = work.nested.max(inner.nested);
                }
                work.nested = work.nested.saturating_add(1);
                if let Some(place) = now.get_mut(at) {
                    *place = work;
                }
            }
            if by_depth.is_empty() {
                // At depth 0 nothing is below.
                at_one_place = now.iter().map(|work| work.count).max().unwrap_or(0);
            }
            by_depth.push(now.first().copied().unwrap_or_default());
            if now == below {
                break;
            }
            below = now;
        }
        Some(Costs {
            at_one_place,
            by_depth,
        })
    }

    /// The subschemas, each after all that it applies to the same place.
    fn order(&self) -> Option<Vec<usize>> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.nodes.len()];
        let mut order = Vec::with_capacity(self.nodes.len());
        for start in 0..self.nodes.len() {
            // Depth first, with its own stack.
            let mut stack = vec![start];
            while let Some(&at) = stack.last() {
                let (Some(node), Some(mark)) = (self.nodes.get(at), marks.get_mut(at)) else {
                    break;
                };
                match *mark {
                    Mark::New => {
                        *mark = Mark::Open;
                        for &next in &node.here {
                            match marks.get(next) {
                                Some(Mark::Open) => return None,
                                Some(Mark::New) => stack.push(next),
                                _ => {}
                            }
                        }
                    }
                    Mark::Open => {
                        *mark = Mark::Done;
                        order.push(at);
                        stack.pop();
                    }
                    Mark::Done => {
                        stack.pop();
                    }
                }
            }
        }
        Some(order)
    }
}

struct Reading {
    graph: Graph,
    places: HashMap<String, usize>,
    anchors: HashMap<String, usize>,
    /// Not yet followed: (node, pointer of the keyword, its text).
    references: Vec<(usize, String, String)>,
    subschemas_max: usize,
    id_keyword: &'static str,
}

impl Reading {
    /// Reads the subschema at `at`, and all below it. Recursion is bounded by the schema's depth.
    fn subschema(&mut self, schema: &Value, at: String) -> Result<usize, TooMany> {
        let index = self.graph.nodes.len();
        if index >= self.subschemas_max {
            return Err(TooMany);
        }
        self.graph.nodes.push(Node {
            own: 1,
            nested_by_depth: 0,
            here: Vec::new(),
            below: Vec::new(),
        });
        self.places.insert(at.clone(), index);
        let Value::Object(members) = schema else {
            return Ok(index);
        };
        let (mut here, mut below) = (Vec::new(), Vec::new());
        for (keyword, value) in members {
            let place = pointer::push(&at, keyword);
            let keyword = keyword.as_str();
            match value {
                Value::String(text) if REFERENCES.contains(&keyword) => {
                    self.references.push((index, place, text.clone()));
                }
                Value::String(name) if matches!(keyword, "$anchor" | "$dynamicAnchor") => {
                    self.anchors.insert(name.clone(), index);
                }
                Value::String(_) if keyword == self.id_keyword && index > 0 => {
                    self.graph.inner_ids.push(place);
                }
                Value::String(text) if keyword == "pattern" => {
                    self.graph.patterns.push((place, text.clone()));
                }
                _ if HERE.contains(&keyword) => self.one_or_more(value, &place, &mut here)?,
                _ if BELOW.contains(&keyword) => self.one_or_more(value, &place, &mut below)?,
                Value::Object(named) => {
                    if keyword == "patternProperties" {
                        for pattern in named.keys() {
                            let place = pointer::push(&place, pattern);
                            self.graph.patterns.push((place, pattern.clone()));
                        }
                    }
                    let found = if HERE_BY_NAME.contains(&keyword) {
                        &mut here
                    } else if BELOW_BY_NAME.contains(&keyword) {
                        &mut below
                    } else if KEPT_BY_NAME.contains(&keyword) {
                        &mut Vec::new()
                    } else {
                        continue;
                    };
                    for (name, value) in named {
                        self.one_or_more(value, &pointer::push(&place, name), found)?;
                    }
                }
                _ => {}
            }
        }
        if let Some(node) = self.graph.nodes.get_mut(index) {
            node.here.append(&mut here);
            node.below.append(&mut below);
        }
        Ok(index)
    }

    fn one_or_more(
        &mut self,
        value: &Value,
        at: &str,
        found: &mut Vec<usize>,
    ) -> Result<(), TooMany> {
        match value {
            Value::Object(_) | Value::Bool(_) => found.push(self.subschema(value, at.to_owned())?),
            Value::Array(several) => {
                for (place, one) in several.iter().enumerate() {
                    if matches!(one, Value::Object(_) | Value::Bool(_)) {
                        found.push(self.subschema(one, pointer::push(at, place))?);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The text that a URI fragment stands for. What is no percent-encoding stays as it is.
fn percent_decoded(fragment: &str) -> String {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = (first == b'%')
            .then(|| tail.get(..2))
            .flatten()
            .and_then(|two| std::str::from_utf8(two).ok())
            .filter(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|two| u8::from_str_radix(two, 16).ok());
        bytes.push(hex.unwrap_or(first));
        rest = if hex.is_some() {
            tail.get(2..).unwrap_or_default()
        } else {
            tail
        };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
