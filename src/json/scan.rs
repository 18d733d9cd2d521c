//! The tokens of JSON (RFC 8259) in a text: strings and numbers, and where they stand.

/// A position in a text that is known to be UTF-8.
pub(super) struct Scanner<'t> {
    text: &'t str,
    at: usize,
}

/// The text is no JSON from here on.
#[derive(Debug)]
pub(super) struct NotJson {
    /// Offset in bytes.
    at: usize,
    /// The end of a sentence that starts with "This is not JSON".
    reason: String,
}

/// A string without its quotes and escapes, and what it holds that cannot be carried on.
pub(super) struct Text {
    pub text: String,
    pub flaw: Option<&'static str>,
}

const NUL: &str = "holds the character U+0000, which cannot be stored";
const LONE_SURROGATE: &str = "holds half of a surrogate pair, which is not a character";

impl<'t> Scanner<'t> {
    pub fn new(text: &'t str) -> Self {
        Self { text, at: 0 }
    }

    /// The byte here, without taking it.
    pub fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Takes the byte here if it is `wanted`.
    pub fn eat(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    pub fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Takes `word` if it stands here.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let found = self.rest().starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    /// The failure to find what was `expected` here.
    pub fn expected(&self, expected: &str) -> NotJson {
        let found = match self.rest().chars().next() {
            None => "the end of the text".to_owned(),
            Some(character) if character.is_control() => format!("U+{:04X}", u32::from(character)),
            Some(character) => format!("`{character}`"),
        };
        NotJson {
            at: self.at,
            reason: format!("expected {expected}, found {found}"),
        }
    }

    /// Takes a number and answers its text, digit for digit. The byte here is `-` or a digit.
    pub fn number(&mut self) -> Result<&'t str, NotJson> {
        let start = self.at;
        self.eat(b'-');
        if self.eat(b'0') {
            if self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                return Err(self.expected("no digit after a leading zero"));
            }
        } else {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _ = self.eat(b'+') || self.eat(b'-');
            self.digits()?;
        }
        Ok(self.text.get(start..self.at).unwrap_or_default())
    }

    fn digits(&mut self) -> Result<(), NotJson> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.expected("a digit"));
        }
        Ok(())
    }

    /// Takes a string. The byte here is its opening quote.
    ///
    /// What cannot be carried on stands in the answer as U+FFFD, with the flaw named: the caller
    /// refuses the document, and the pointers it reports must themselves be fit to store.
    pub fn string(&mut self) -> Result<Text, NotJson> {
        self.eat(b'"');
        let mut found = Text {
            text: String::new(),
            flaw: None,
        };
        loop {
            let start = self.at;
            while let Some(byte) = self.peek() {
                if byte == b'"' || byte == b'\\' || byte < b' ' {
                    break;
                }
                self.at += 1;
            }
            // The run ends before an ASCII byte or at the end, so on a boundary of characters.
            found
                .text
                .push_str(self.text.get(start..self.at).unwrap_or_default());
            if self.eat(b'"') {
                return Ok(found);
            }
            if !self.eat(b'\\') {
                return Err(match self.peek() {
                    Some(_) => self.expected("an escape in place of the control character"),
                    None => self.expected("the closing quote of a string"),
                });
            }
            match self.escape()? {
                Ok('\0') => found.spoil(NUL),
                Ok(character) => found.text.push(character),
                Err(LoneSurrogate) => found.spoil(LONE_SURROGATE),
            }
        }
    }

    /// The character of an escape whose backslash is taken.
    fn escape(&mut self) -> Result<Result<char, LoneSurrogate>, NotJson> {
        let plain = match self.peek() {
            Some(b'u') => {
                self.at += 1;
                let unit = self.four_hex()?;
                return self.finish_unit(unit);
            }
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            _ => return Err(self.expected(r#"one of "\/bfnrtu after a backslash"#)),
        };
        self.at += 1;
        Ok(Ok(plain))
    }

    /// The character that starts with the UTF-16 unit just read; takes the second half of a pair.
    fn finish_unit(&mut self, unit: u16) -> Result<Result<char, LoneSurrogate>, NotJson> {
        if !(0xd800..0xdc00).contains(&unit) {
            return Ok(char::from_u32(u32::from(unit)).ok_or(LoneSurrogate));
        }
        let before = self.at;
        if self.eat_word("\\u") {
            let low = self.four_hex()?;
            if (0xdc00..0xe000).contains(&low) {
                let high = (u32::from(unit) - 0xd800) << 10;
                let point = 0x1_0000 + high + (u32::from(low) - 0xdc00);
                return Ok(char::from_u32(point).ok_or(LoneSurrogate));
            }
            // Not its other half: it is read again as an escape of its own.
            self.at = before;
        }
        Ok(Err(LoneSurrogate))
    }

    fn four_hex(&mut self) -> Result<u16, NotJson> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            let digit = digit.and_then(|digit| u16::try_from(digit).ok());
            unit = unit << 4 | digit.ok_or_else(|| self.expected("four hex digits after \\u"))?;
            self.at += 1;
        }
        Ok(unit)
    }

    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }
}

struct LoneSurrogate;

impl Text {
    fn spoil(&mut self, flaw: &'static str) {
        self.text.push(char::REPLACEMENT_CHARACTER);
        self.flaw.get_or_insert(flaw);
    }
}

impl NotJson {
    /// The sentence for the person who wrote `text`.
    pub fn message(&self, text: &str) -> String {
        let before = text.get(..self.at).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        format!(
            "This is not JSON: {} (line {line}, column {column}).",
            self.reason
        )
    }
}
