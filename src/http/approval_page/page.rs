//! The pages as HTML.

use crate::json::Violation;
use crate::words::Timestamp;

use super::form::{self, Choice, Field, Kind, pretty};
use super::html::{Html, unforced, visible};
use super::read::{COMMENT, DECIDED_BY, DECISION, Filled};
use super::{Decided, Outcome, Shown, Unusable};

/// Named by its digest in the content security policy.
pub(super) const STYLE: &str = include_str!("page.css");

/// The page that asks, with the form as `filled` left it and each flaw beside its field.
///
/// `action` is where the form is sent: a path of this origin, since the policy allows no other.
/// Flaws point into the answer, such as `/data/amount`, `/comment`, `/decided_by`, `/decision`;
/// one that points at no field stands on top only.
pub fn ask(shown: &Shown<'_>, action: &str, filled: &Filled, errors: &[Violation]) -> String {
    let form = shown.schema.map(form::form);
    let placed = place(form.as_ref(), errors);
    let focus = placed
        .iter()
        .find_map(|error| error.spot.as_ref()?.focus.clone());
    let title = match errors.is_empty() {
        true => "Approval requested",
        false => "Error: Approval requested",
    };
    let mut page = Page {
        html: Html::default(),
        filled,
        errors: &placed,
        focus,
    };
    page.ask(shown, action, form.as_ref());
    whole(title, page.html)
}

/// The page of an approval that is over: how, by whom and when.
pub fn decided(decided: &Decided<'_>) -> String {
    let (title, class, line) = match decided.outcome {
        Outcome::Approved => ("Approved", "approved", "It was approved"),
        Outcome::Rejected => ("Rejected", "rejected", "It was rejected"),
        Outcome::Expired => ("Expired", "soft", "Nobody decided in time: it expired"),
        Outcome::Cancelled => (
            "Cancelled",
            "soft",
            "There is nothing left to decide: it was cancelled",
        ),
    };
    let mut html = Html::default();
    html.raw("<h1 class=\"")
        .raw(class)
        .raw("\">")
        .raw(title)
        .raw("</h1>\n");
    if decided.too_late {
        html.raw("<p><strong>It was over before you decided, so your answer was not taken.</strong></p>\n");
    }
    html.raw("<p>").raw(line);
    if let Some(by) = decided.by {
        html.raw(" by <bdi>").text(by).raw("</bdi>");
    }
    html.raw(" at ");
    time(&mut html, decided.at);
    html.raw(".</p>\n");
    if let Some(comment) = decided.comment {
        html.raw("<h2>Comment</h2>\n<div class=\"prompt\" dir=\"auto\">")
            .text(&unforced(comment))
            .raw("</div>\n");
    }
    html.raw("<h2>What was asked</h2>\n");
    if let Some(tool) = decided.tool {
        html.raw("<p>A call of the tool <code>")
            .text(tool)
            .raw("</code>.</p>\n");
    }
    html.raw("<div class=\"prompt\" dir=\"auto\">")
        .text(&unforced(decided.prompt))
        .raw("</div>\n");
    facts(&mut html, None, decided.run_id, decided.step_id);
    whole(title, html)
}

/// The page for a link or a form with which nothing can be decided. Sent with [`Unusable::status`].
pub fn unusable(reason: &Unusable) -> String {
    let title = match reason {
        Unusable::Forged => "This link cannot be used",
        Unusable::Expired => "This link has expired",
        Unusable::Malformed(_) => "The form could not be read",
    };
    let mut html = Html::default();
    // The name of a field may be as long as a body.
    let message: String = reason.to_string().chars().take(500).collect();
    html.raw("<h1>")
        .raw(title)
        .raw("</h1>\n<p>")
        .text(&message)
        .raw("</p>\n");
    whole(title, html)
}

fn whole(title: &'static str, body: Html) -> String {
    let mut html = Html::default();
    html.raw("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n")
        .raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n")
        .raw("<meta name=\"robots\" content=\"noindex\">\n<title>")
        .raw(title)
        .raw("</title>\n<style>")
        .raw(STYLE)
        .raw("</style>\n</head>\n<body>\n<main>\n")
        .add(body)
        .raw("</main>\n</body>\n</html>\n");
    html.into_string()
}

fn time(html: &mut Html, at: Timestamp) {
    let text = at.to_string();
    let part = |range| text.get(range).unwrap_or_default();
    html.raw("<time")
        .attribute("datetime", &text)
        .raw(">")
        .text(part(0..10));
    html.raw(" ").text(part(11..16)).raw(" UTC</time>");
}

fn facts(html: &mut Html, until: Option<Timestamp>, run_id: &str, step_id: &str) {
    html.raw("<dl>\n");
    if let Some(until) = until {
        html.raw("<dt>Open until</dt><dd>");
        time(html, until);
        html.raw("</dd>\n");
    }
    html.raw("<dt>Run</dt><dd><code>")
        .text(run_id)
        .raw("</code></dd>\n");
    html.raw("<dt>Step</dt><dd><code>")
        .text(step_id)
        .raw("</code></dd>\n</dl>\n");
}

/// A flaw, and the field that it belongs to.
struct Placed<'e> {
    spot: Option<Spot>,
    /// Where within the field, as a pointer; empty for the field itself.
    within: &'e str,
    message: &'e str,
}

impl Placed<'_> {
    fn is_of(&self, id: &str) -> bool {
        self.spot.as_ref().is_some_and(|spot| spot.id == id)
    }
}

#[derive(Clone)]
struct Spot {
    pointer: String,
    id: String,
    title: String,
    /// The element that can be given the focus.
    focus: Option<String>,
    order: usize,
}

/// The flaws in the order of the page, each with the innermost field that holds its place.
fn place<'e>(form: Option<&Field<'_>>, errors: &'e [Violation]) -> Vec<Placed<'e>> {
    let mut spots: Vec<Spot> = Vec::new();
    let mut add = |pointer: &str, id: String, title: &str, focus: Option<String>| {
        let (pointer, title, order) = (pointer.to_owned(), title.to_owned(), spots.len());
        spots.push(Spot {
            pointer,
            id,
            title,
            focus,
            order,
        });
    };
    if let Some(form) = form {
        form.walk(&mut |field| {
            let focus = match field.kind {
                Kind::Group(_) => None,
                Kind::Several(_) => Some(option_id(field, 0)),
                _ => Some(id(field)),
            };
            add(&field.pointer, id(field), &field.title, focus);
        });
    }
    for (name, title) in [(COMMENT, "Comment"), (DECIDED_BY, "Your name")] {
        add(
            &format!("/{name}"),
            name.to_owned(),
            title,
            Some(name.to_owned()),
        );
    }
    add(
        &format!("/{DECISION}"),
        DECISION.to_owned(),
        "Decision",
        None,
    );

    let mut placed: Vec<Placed<'_>> = errors
        .iter()
        .map(|Violation { pointer, message }| {
            let within = |spot: &Spot| {
                let rest = pointer.strip_prefix(spot.pointer.as_str())?;
                (rest.is_empty() || rest.starts_with('/')).then_some(rest)
            };
            let found = spots.iter().filter_map(|spot| Some((spot, within(spot)?)));
            match found.min_by_key(|(_, rest)| rest.len()) {
                Some((spot, within)) => Placed {
                    spot: Some(spot.clone()),
                    within,
                    message,
                },
                None => Placed {
                    spot: None,
                    within: pointer,
                    message,
                },
            }
        })
        .collect();
    placed.sort_by_key(|error| error.spot.as_ref().map(|spot| spot.order));
    placed
}

fn id(field: &Field<'_>) -> String {
    format!("f{}", field.number)
}

fn option_id(field: &Field<'_>, place: usize) -> String {
    format!("f{}-{place}", field.number)
}

struct Page<'p> {
    html: Html,
    filled: &'p Filled,
    errors: &'p [Placed<'p>],
    /// The element that is given the focus.
    focus: Option<String>,
}

impl Page<'_> {
    fn ask(&mut self, shown: &Shown<'_>, action: &str, form: Option<&Field<'_>>) {
        self.html.raw("<h1>Your approval is asked for</h1>\n");
        self.summary();
        self.html
            .raw("<div class=\"prompt\" dir=\"auto\">")
            .text(&unforced(shown.prompt))
            .raw("</div>\n");
        self.call(shown);
        self.html
            .raw("<form method=\"post\" autocomplete=\"off\"")
            .attribute("action", action)
            .raw(">\n");
        // The Enter key presses a form's first button. This one cannot be pressed, so that nobody
        // approves by leaving a field with Enter.
        self.html
            .raw("<button type=\"submit\" disabled hidden>Nothing</button>\n");
        if let Some(form) = form {
            self.field(form);
        }
        self.own_fields(shown);
        self.html.raw("<div class=\"buttons\" id=\"decision\">\n");
        self.html.raw(
            "<button class=\"approve\" name=\"decision\" value=\"approved\">Approve</button>\n",
        );
        // Nobody has to fill in a form in order to refuse.
        self.html.raw("<button class=\"reject\" name=\"decision\" value=\"rejected\" formnovalidate>Reject</button>\n</div>\n");
        self.flaws("decision");
        if form.is_some() {
            self.html.raw(
                "<p class=\"hint\">With a rejection only the comment and the name are sent.</p>\n",
            );
        }
        self.html.raw("</form>\n");
        facts(&mut self.html, shown.until, shown.run_id, shown.step_id);
    }

    fn summary(&mut self) {
        if self.errors.is_empty() {
            return;
        }
        self.html
            .raw("<div class=\"summary\" role=\"alert\" tabindex=\"-1\" id=\"summary\"");
        if self.focus.is_none() {
            self.html.raw(" autofocus");
        }
        self.html.raw(">\n<h2>Nothing was decided yet</h2>\n<ul>\n");
        for error in self.errors {
            self.html.raw("<li>");
            if let Some(spot) = &error.spot {
                let target = spot.focus.as_ref().unwrap_or(&spot.id);
                self.html
                    .raw("<a")
                    .attribute("href", &format!("#{target}"))
                    .raw("><bdi>");
                self.html.text(&spot.title).raw("</bdi></a>: ");
            }
            message(&mut self.html, error);
            self.html.raw("</li>\n");
        }
        self.html.raw("</ul>\n</div>\n");
    }

    /// The call that is to be approved.
    fn call(&mut self, shown: &Shown<'_>) {
        if shown.tool.is_none() && shown.arguments.is_none() {
            return;
        }
        self.html.raw("<h2 id=\"call\">What will be called</h2>\n");
        if let Some(tool) = shown.tool {
            self.html
                .raw("<p>The tool <code>")
                .text(tool)
                .raw("</code>");
            self.html.raw(match shown.arguments {
                Some(_) => ", with exactly these arguments:</p>\n",
                None => ".</p>\n",
            });
        }
        if let Some(arguments) = shown.arguments {
            // A long one scrolls, so the keyboard must be able to reach it. HTML drops the line
            // break after the tag.
            self.html
                .raw("<pre tabindex=\"0\" role=\"region\" aria-labelledby=\"call\">\n");
            self.html.text(&visible(&pretty(arguments))).raw("</pre>\n");
        }
        if let Some(digest) = shown.arguments_digest {
            self.html
                .raw("<p class=\"soft\">SHA-256 of the arguments: <code>")
                .text(digest)
                .raw("</code></p>\n");
        }
    }

    /// What every form asks.
    fn own_fields(&mut self, shown: &Shown<'_>) {
        self.html.raw("<div class=\"field\">\n<label for=\"comment\">Comment <span class=\"optional\">(optional)</span></label>\n");
        self.flaws(COMMENT);
        self.html
            .raw("<textarea id=\"comment\" name=\"comment\" rows=\"2\"");
        self.state(COMMENT, false);
        self.html
            .raw(">\n")
            .text(self.filled.first(COMMENT))
            .raw("</textarea>\n</div>\n");
        if let Some(name) = shown.decided_by {
            self.html
                .raw("<p>You answer as <strong><bdi>")
                .text(name)
                .raw("</bdi></strong>.</p>\n");
            return;
        }
        self.html.raw("<div class=\"field\">\n<label for=\"decided_by\">Your name <span class=\"optional\">(optional)</span></label>\n");
        self.flaws(DECIDED_BY);
        self.html
            .raw("<input id=\"decided_by\" name=\"decided_by\" autocomplete=\"name\"");
        self.html.attribute("value", self.filled.first(DECIDED_BY));
        self.state(DECIDED_BY, false);
        self.html.raw(">\n</div>\n");
    }

    fn field(&mut self, field: &Field<'_>) {
        let id = id(field);
        let given = self.given(field);
        match &field.kind {
            Kind::Group(fields) => {
                self.open_fieldset(field, &id);
                fields.iter().for_each(|inner| self.field(inner));
                self.html.raw("</fieldset>\n");
            }
            Kind::Several(choices) => {
                self.open_fieldset(field, &id);
                for (place, Choice { label, .. }) in choices.iter().enumerate() {
                    let (own, place) = (option_id(field, place), place.to_string());
                    self.html
                        .raw("<label class=\"choice\"><input type=\"checkbox\"")
                        .attribute("id", &own);
                    self.html
                        .attribute("name", &field.pointer)
                        .attribute("value", &place);
                    self.flag(" checked", given.contains(&place));
                    self.flag(" autofocus", self.focus.as_ref() == Some(&own));
                    self.html.raw("><bdi>").text(label).raw("</bdi></label>\n");
                }
                self.html.raw("</fieldset>\n");
            }
            Kind::Check { .. } => {
                self.html
                    .raw("<div class=\"field\">\n<input type=\"checkbox\" value=\"true\"");
                self.names(field, &id);
                self.flag(" checked", given.iter().any(|text| text == "true"));
                self.html.raw(">");
                self.label(field, &id);
                self.explain(field, &id);
                self.html.raw("</div>\n");
            }
            _ => {
                self.html.raw("<div class=\"field\">\n");
                self.label(field, &id);
                self.explain(field, &id);
                self.input(field, &id, given.first().map_or("", String::as_str));
                self.html.raw("</div>\n");
            }
        }
    }

    /// What stands in the field: what was sent, else the default.
    fn given(&self, field: &Field<'_>) -> Vec<String> {
        match self.filled.of(&field.pointer) {
            Some(texts) => texts.to_vec(),
            None => field.initial(),
        }
    }

    fn input(&mut self, field: &Field<'_>, id: &str, given: &str) {
        match &field.kind {
            Kind::Choice(choices) => {
                self.html.raw("<select");
                self.names(field, id);
                self.html
                    .raw(">\n<option value=\"\">")
                    .raw(match field.must_be_filled() {
                        true => "Choose…",
                        false => "(none)",
                    });
                self.html.raw("</option>\n");
                for (place, Choice { label, .. }) in choices.iter().enumerate() {
                    let place = place.to_string();
                    self.html.raw("<option").attribute("value", &place);
                    self.flag(" selected", given == place);
                    self.html.raw(">").text(label).raw("</option>\n");
                }
                self.html.raw("</select>\n");
            }
            Kind::Text {
                many_lines: false,
                format,
                least,
                pattern,
            } if !given.contains('\n') => {
                self.html.raw("<input").raw(match *format {
                    Some("email") => " type=\"email\"",
                    Some("uri") => " type=\"url\"",
                    // In a field of that type a browser drops what is no date, and nobody could
                    // mend it.
                    Some("date") if given.is_empty() || is_date(given) => " type=\"date\"",
                    _ => " type=\"text\"",
                });
                self.html.attribute("value", given);
                self.least(*least);
                if let Some(pattern) = pattern.filter(|pattern| means_the_same_in_html(pattern)) {
                    // JSON Schema looks for the pattern anywhere, HTML holds it against the whole.
                    self.html
                        .attribute("pattern", &format!(".*(?:{pattern}).*"));
                }
                self.names(field, id);
                self.html.raw(">\n");
            }
            Kind::Text { least, .. } => {
                self.html.raw("<textarea rows=\"1\"");
                self.least(*least);
                self.area(field, id, given);
            }
            // Not type=number: browsers count in doubles, change the number when somebody scrolls,
            // and drop what they cannot read. `min` and `max` exist for that type only.
            Kind::Number { whole, positive } => {
                self.html
                    .raw("<input type=\"text\" spellcheck=\"false\"")
                    .attribute("value", given);
                // The keypads of some phones have no minus.
                if *positive {
                    self.html.raw(match whole {
                        true => " inputmode=\"numeric\"",
                        false => " inputmode=\"decimal\"",
                    });
                }
                self.html.attribute(
                    "pattern",
                    r"\s*-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?\s*",
                );
                self.names(field, id);
                self.html.raw(">\n");
            }
            _ => {
                self.html
                    .raw("<textarea class=\"code\" rows=\"4\" spellcheck=\"false\"");
                self.area(field, id, given);
            }
        }
    }

    fn area(&mut self, field: &Field<'_>, id: &str, given: &str) {
        self.names(field, id);
        // HTML drops the line break after the tag, and would drop one of the text.
        self.html.raw(">\n").text(given).raw("</textarea>\n");
    }

    /// `maxlength` is left out: HTML counts an emoji as two and would cut off what the schema
    /// allows. Counted so, a text is never shorter.
    fn least(&mut self, least: u64) {
        if least > 0 {
            self.html.attribute("minlength", &least.to_string());
        }
    }

    fn names(&mut self, field: &Field<'_>, id: &str) {
        self.html
            .attribute("id", id)
            .attribute("name", &field.pointer);
        self.flag(" required", field.must_be_filled());
        self.state(id, has_hint(field));
    }

    /// What says which texts explain the element, and whether it is wrong.
    fn state(&mut self, id: &str, hinted: bool) {
        let is_wrong = self.errors.iter().any(|error| error.is_of(id));
        let described = match (hinted, is_wrong) {
            (true, true) => Some(format!("{id}-hint {id}-error")),
            (true, false) => Some(format!("{id}-hint")),
            (false, true) => Some(format!("{id}-error")),
            (false, false) => None,
        };
        if let Some(described) = described {
            self.html.attribute("aria-describedby", &described);
        }
        self.flag(" aria-invalid=\"true\"", is_wrong);
        self.flag(" autofocus", self.focus.as_deref() == Some(id));
    }

    fn open_fieldset(&mut self, field: &Field<'_>, id: &str) {
        self.html.raw("<fieldset").attribute("id", id);
        self.state(id, has_hint(field));
        self.html
            .raw(">\n<legend><bdi>")
            .text(&field.title)
            .raw("</bdi>");
        self.optional(field);
        self.html.raw("</legend>\n");
        self.explain(field, id);
    }

    fn label(&mut self, field: &Field<'_>, id: &str) {
        self.html
            .raw("<label")
            .attribute("for", id)
            .raw("><bdi>")
            .text(&field.title)
            .raw("</bdi>");
        self.optional(field);
        self.html.raw("</label>\n");
    }

    fn optional(&mut self, field: &Field<'_>) {
        self.flag(
            " <span class=\"optional\">(optional)</span>",
            !field.required,
        );
    }

    /// The field's hints and flaws.
    fn explain(&mut self, field: &Field<'_>, id: &str) {
        if has_hint(field) {
            self.html
                .raw("<div class=\"hint\"")
                .attribute("id", &format!("{id}-hint"))
                .raw(">");
            for (place, hint) in field.hints.iter().enumerate() {
                self.flag("\n", place > 0);
                self.html.raw("<bdi>").text(hint).raw("</bdi>");
            }
            if matches!(field.kind, Kind::Json { .. }) {
                self.flag("\n", !field.hints.is_empty());
                self.html.raw("Written as JSON.");
            }
            self.html.raw("</div>\n");
        }
        if let Kind::Json {
            schema: Some(schema),
        } = &field.kind
        {
            self.html
                .raw("<details><summary>Its JSON Schema</summary>\n<pre>\n");
            self.html.text(schema).raw("</pre></details>\n");
        }
        self.flaws(id);
    }

    fn flaws(&mut self, id: &str) {
        let mut errors = self.errors.iter().filter(|error| error.is_of(id));
        let Some(first) = errors.next() else {
            return;
        };
        self.html
            .raw("<div class=\"error\"")
            .attribute("id", &format!("{id}-error"))
            .raw(">");
        message(&mut self.html, first);
        for error in errors {
            self.html.raw("\n");
            message(&mut self.html, error);
        }
        self.html.raw("</div>\n");
    }

    fn flag(&mut self, html: &'static str, is_set: bool) {
        if is_set {
            self.html.raw(html);
        }
    }
}

fn has_hint(field: &Field<'_>) -> bool {
    !field.hints.is_empty() || matches!(field.kind, Kind::Json { .. })
}

fn message(html: &mut Html, error: &Placed<'_>) {
    if !error.within.is_empty() {
        html.raw("<code>")
            .text(&visible(error.within))
            .raw("</code>: ");
    }
    html.text(error.message);
}

fn is_date(text: &str) -> bool {
    Timestamp::parse(&format!("{text}T12:00:00Z")).is_ok()
}

/// Whether a browser reads the pattern as the server does, as far as can be told at a glance. Where
/// it does not, the server alone holds the text against it.
fn means_the_same_in_html(pattern: &str) -> bool {
    let mut characters = pattern.chars();
    let mut in_class = false;
    while let Some(character) = characters.next() {
        let is_plain = match character {
            '\\' => matches!(
                characters.next(),
                Some('d' | 'w' | '.' | '-' | '+' | '/' | '(' | ')')
            ),
            '[' if in_class => false,
            other => other.is_ascii_alphanumeric() || "^$.*+?{},()|[]_-@:=#% ".contains(other),
        };
        if !is_plain {
            return false;
        }
        in_class = (in_class || character == '[') && character != ']';
    }
    // Groups with options, and the sets that only HTML knows.
    pattern.len() <= 1_000 && !pattern.contains("(?") && !pattern.contains("--")
}
