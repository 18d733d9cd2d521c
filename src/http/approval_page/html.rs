//! HTML in the making. Only literals of this program go in as they are: whatever else is put in
//! passes through [`Html::text`], so that forgetting to escape does not compile.

/// A piece of a page.
#[derive(Default)]
pub(super) struct Html(String);

impl Html {
    /// Markup.
    pub fn raw(&mut self, html: &'static str) -> &mut Self {
        self.0.push_str(html);
        self
    }

    /// Text, or the value of an attribute in double quotes.
    pub fn text(&mut self, text: &str) -> &mut Self {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                // HTML cannot hold it, not even as a reference.
                '\0' => self.0.push('\u{fffd}'),
                other => self.0.push(other),
            }
        }
        self
    }

    /// An attribute, with the space before it.
    pub fn attribute(&mut self, name: &'static str, value: &str) -> &mut Self {
        self.raw(" ").raw(name).raw("=\"").text(value).raw("\"")
    }

    /// Another piece.
    pub fn add(&mut self, piece: Self) -> &mut Self {
        self.0.push_str(&piece.0);
        self
    }

    pub fn into_string(self) -> String {
        self.0
    }
}

/// JSON text in which no character is invisible or turns the direction of writing: they are
/// written as `\u` escapes, which mean the same. Such a character stands within a string, since
/// JSON allows it nowhere else.
///
/// Who approves a call must see its arguments as they are: a right-to-left override in the name of
/// a payee makes a browser show another name.
pub(super) fn visible(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        if is_hidden(character) {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                shown.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Text for people, such as a prompt, without the characters that force letters into the other
/// direction. A prompt may hold values from outside, and no language needs them: the marks and
/// isolates that right-to-left scripts use stay.
pub(super) fn unforced(text: &str) -> String {
    text.replace(['\u{202d}', '\u{202e}'], "\u{fffd}")
}

/// Control characters, and those of Unicode's category Cf that take no room or change direction.
/// The joiners U+200C and U+200D are left as they are: scripts and emoji need them.
fn is_hidden(character: char) -> bool {
    matches!(character,
        '\u{7f}'..='\u{9f}' | '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn text_cannot_leave_its_place() {
        let mut html = Html::default();
        html.raw("<p").attribute("title", "\"><b>'&\0").raw(">");
        assert_eq!(
            html.into_string(),
            "<p title=\"&quot;&gt;&lt;b&gt;&#39;&amp;\u{fffd}\">"
        );
    }

    #[test]
    fn what_is_hidden_is_shown_and_means_the_same() {
        let text = "\"a\u{202e}b\u{200b}c\u{e0041}d\u{85}é👩\u{200d}👧\"";
        let shown = visible(text);
        assert_eq!(
            shown,
            "\"a\\u202eb\\u200bc\\udb40\\udc41d\\u0085é👩\u{200d}👧\""
        );
        assert_eq!(
            json::read(shown.as_bytes()).unwrap(),
            json::read(text.as_bytes()).unwrap()
        );
    }
}
