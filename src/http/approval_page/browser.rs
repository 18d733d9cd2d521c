//! For tests: as much of a browser as a form needs, and strict where browsers forgive.

use std::collections::{BTreeMap, BTreeSet};

use html5gum::emitters::default::DefaultEmitter;
use html5gum::{Token, Tokenizer};
use url::form_urlencoded::Serializer;

use super::page::STYLE;

type Attributes = BTreeMap<String, String>;

/// An input, a box, a list of options or an area.
#[derive(Debug, Default, Clone)]
pub struct Control {
    pub tag: String,
    pub attributes: Attributes,
    /// Of an area what it holds, else the attribute.
    pub value: String,
    pub label: String,
    /// Of a list: values, labels, and whether it is the chosen one.
    pub options: Vec<(String, String, bool)>,
}

impl Control {
    pub fn name(&self) -> &str {
        self.attributes.get("name").map_or("", String::as_str)
    }

    pub fn has(&self, attribute: &str) -> bool {
        self.attributes.contains_key(attribute)
    }

    fn is_box(&self) -> bool {
        self.attributes
            .get("type")
            .is_some_and(|name| name == "checkbox")
    }
}

/// A page as it is seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub title: String,
    /// All text outside of `style` and the areas.
    pub text: String,
    pub controls: Vec<Control>,
    /// The texts of elements with an id.
    pub by_id: BTreeMap<String, String>,
    pub focus: Option<String>,
    pub action: Option<String>,
}

const VOID: [&str; 2] = ["meta", "input"];
const TAGS: [&str; 34] = [
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "div", "pre",
    "code", "bdi", "strong", "span", "a", "ul", "li", "dl", "dt", "dd", "time", "form", "fieldset",
    "legend", "label", "input", "select", "option", "textarea", "button", "details", "summary",
];
const ATTRIBUTES: [&str; 32] = [
    "lang",
    "charset",
    "name",
    "content",
    "id",
    "class",
    "dir",
    "role",
    "tabindex",
    "href",
    "method",
    "action",
    "autocomplete",
    "type",
    "value",
    "rows",
    "for",
    "required",
    "checked",
    "selected",
    "disabled",
    "hidden",
    "autofocus",
    "spellcheck",
    "inputmode",
    "pattern",
    "minlength",
    "datetime",
    "formnovalidate",
    "aria-describedby",
    "aria-invalid",
    "aria-labelledby",
];

/// Reads a page. Fails on anything that is no sound HTML, on what no page of this module has, and
/// on references to what is not there.
pub fn see(html: &str) -> Seen {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(true);
    let mut seen = Seen::default();
    let mut open: Vec<(String, Option<String>)> = Vec::new();
    let mut ids = BTreeSet::new();
    let mut references = Vec::new();
    let mut style = String::new();
    let mut label_for = None;
    for Ok(token) in Tokenizer::new_with_emitter(html, emitter) {
        match token {
            Token::Doctype(doctype) => assert!(*doctype.name == b"html" && !doctype.force_quirks),
            Token::Comment(_) => panic!("a comment"),
            Token::Error(error) => panic!("{:?} in {html}", error.value),
            Token::StartTag(tag) => {
                let name = utf8(&tag.name);
                assert!(TAGS.contains(&name.as_str()), "<{name}>");
                let attributes: Attributes = tag
                    .attributes
                    .iter()
                    .map(|(name, value)| (utf8(name), utf8(value)))
                    .collect();
                for (name, value) in &attributes {
                    assert!(ATTRIBUTES.contains(&name.as_str()), "{name}={value}");
                }
                let within = |outer: &str| open.iter().any(|(name, _)| name == outer);
                match name.as_str() {
                    "form" => {
                        assert!(!within("form"));
                        assert_eq!(attributes["method"], "post");
                        assert_eq!(seen.action.replace(attributes["action"].clone()), None);
                    }
                    "input" | "select" | "textarea" => {
                        assert!(within("form"));
                        seen.controls.push(Control {
                            tag: name.clone(),
                            value: attributes.get("value").cloned().unwrap_or_default(),
                            attributes: attributes.clone(),
                            ..Control::default()
                        });
                    }
                    "option" => {
                        let options = &mut seen.controls.last_mut().unwrap().options;
                        let selected = attributes.contains_key("selected");
                        options.push((attributes["value"].clone(), String::new(), selected));
                    }
                    "label" => label_for = attributes.get("for").cloned(),
                    "a" => assert!(attributes["href"].starts_with('#')),
                    _ => {}
                }
                let id = attributes.get("id").cloned();
                if let Some(id) = &id {
                    assert!(ids.insert(id.clone()), "{id} twice");
                    seen.by_id.insert(id.clone(), String::new());
                }
                for name in ["aria-describedby", "aria-labelledby", "for"] {
                    let value = attributes.get(name).map_or("", String::as_str);
                    references.extend(value.split_whitespace().map(str::to_owned));
                }
                references.extend(attributes.get("href").map(|href| href[1..].to_owned()));
                if attributes.contains_key("autofocus") {
                    assert_eq!(seen.focus.replace(id.clone().unwrap()), None);
                }
                if !VOID.contains(&name.as_str()) {
                    open.push((name, id));
                }
            }
            Token::EndTag(tag) => {
                let name = utf8(&tag.name);
                let (expected, _) = open.pop().expect("an end of something");
                assert_eq!(name, expected, "{html}");
            }
            Token::String(text) => {
                let text = utf8(&text);
                let innermost = open.last().map_or("", |(name, _)| name.as_str());
                match innermost {
                    "style" => style.push_str(&text),
                    "title" => seen.title.push_str(&text),
                    "textarea" => seen.controls.last_mut().unwrap().value.push_str(&text),
                    "option" => seen
                        .controls
                        .last_mut()
                        .unwrap()
                        .options
                        .last_mut()
                        .unwrap()
                        .1
                        .push_str(&text),
                    _ => {
                        if open.iter().any(|(name, _)| name == "label") {
                            let controls = &mut seen.controls;
                            let labelled = match &label_for {
                                None => controls.last_mut(),
                                Some(id) => controls
                                    .iter_mut()
                                    .find(|control| control.attributes.get("id") == Some(id)),
                            };
                            if let Some(control) = labelled {
                                control.label.push_str(&text);
                            }
                        }
                        seen.text.push_str(&text);
                    }
                }
                for id in open.iter().filter_map(|(_, id)| id.as_ref()) {
                    seen.by_id.get_mut(id).unwrap().push_str(&text);
                }
            }
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for reference in references {
        assert!(ids.contains(&reference), "nothing has the id {reference}");
    }
    assert_eq!(style, STYLE);
    for control in &mut seen.controls {
        // HTML drops the first line break of an area.
        if control.tag == "textarea" {
            control.value = control
                .value
                .strip_prefix('\n')
                .unwrap_or(&control.value)
                .to_owned();
        }
    }
    seen
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

impl Seen {
    pub fn control(&self, name: &str) -> &Control {
        let mut found = self
            .controls
            .iter()
            .filter(|control| control.name() == name);
        found
            .next()
            .unwrap_or_else(|| panic!("no {name} in {:?}", self.controls))
    }

    /// What is told beside a control: its hints and flaws.
    pub fn told(&self, name: &str) -> String {
        let described = self.control(name).attributes.get("aria-describedby");
        let ids = described.map_or("", String::as_str).split_whitespace();
        ids.map(|id| self.by_id[id].as_str())
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Fills in a text, chooses an option by its label, or checks the boxes with these labels.
    pub fn fill(&mut self, name: &str, given: &[&str]) {
        let mut found = 0;
        for control in self
            .controls
            .iter_mut()
            .filter(|control| control.name() == name)
        {
            found += 1;
            if control.is_box() {
                control.attributes.remove("checked");
                if given.contains(&control.label.as_str()) {
                    control
                        .attributes
                        .insert("checked".to_owned(), String::new());
                }
            } else if control.tag == "select" {
                for (_, label, selected) in &mut control.options {
                    *selected = given.contains(&label.as_str());
                }
            } else {
                control.value = given.concat();
            }
        }
        assert!(found > 0, "no {name} in {:?}", self.controls);
    }

    /// The body that is sent when a button is pressed.
    pub fn press(&self, decision: &str) -> String {
        let mut body = Serializer::new(String::new());
        for control in &self.controls {
            let value = if control.is_box() {
                if !control.has("checked") {
                    continue;
                }
                control.value.as_str()
            } else if control.tag == "select" {
                let chosen = control.options.iter().find(|(.., selected)| *selected);
                chosen.or(control.options.first()).unwrap().0.as_str()
            } else {
                control.value.as_str()
            };
            let sent = value
                .replace("\r\n", "\n")
                .replace('\r', "\n")
                .replace('\n', "\r\n");
            body.append_pair(control.name(), &sent);
        }
        body.append_pair("decision", decision);
        body.finish()
    }
}
