//! Splits a command in one string into words, with a shell's quoting rules but without a shell.

/// The program and its arguments. Quotes and backslashes work as in a shell; other characters that need a shell are an error.
/// `$` stays for the pod's variables, also within single quotes; `\$` becomes `$$`, which stands for a plain `$` there. An
/// error names the problem and its position.
pub(super) fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    // `None` between words, so that `''` is an empty word.
    let mut word: Option<String> = None;
    let mut rest = text.chars().zip(1usize..);
    while let Some((c, at)) = rest.next() {
        match c {
            '\'' | '"' => quoted(c, &mut rest, word.get_or_insert_default())
                .ok_or_else(|| format!("the quote {c} at character {at} of it is not closed"))?,
            '\\' => match rest.next() {
                // An escaped newline continues the line.
                Some(('\n', _)) => {}
                Some(('$', _)) => word.get_or_insert_default().push_str("$$"),
                Some((escaped, _)) => word.get_or_insert_default().push(escaped),
                None => return Err("it ends with a backslash, which needs a character after it".to_owned()),
            },
            '|' | '&' | ';' | '<' | '>' | '(' | ')' | '`' => {
                return Err(format!(
                    "{c} at character {at} of it needs a shell: put it in quotes, or write [\"sh\", \"-c\", \"…\"]"
                ));
            }
            _ if c.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Reads up to the closing quote; `None` if there is none.
fn quoted(quote: char, rest: &mut impl Iterator<Item = (char, usize)>, word: &mut String) -> Option<()> {
    loop {
        match rest.next()?.0 {
            c if c == quote => return Some(()),
            '\\' if quote == '"' => {
                match rest.next()?.0 {
                    '\n' => {}
                    '$' => word.push_str("$$"),
                    escaped @ ('"' | '\\' | '`') => word.push(escaped),
                    // Within double quotes other backslashes are literal.
                    other => word.extend(['\\', other]),
                }
            }
            c => word.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_split_as_a_shell_would() {
        let cases: [(&str, &[&str]); 14] = [
            ("python3 -m http.server $PORT", &["python3", "-m", "http.server", "$PORT"]),
            ("  a \t b\n c  ", &["a", "b", "c"]),
            (r#"echo 'a b' "c d" e\ f"#, &["echo", "a b", "c d", "e f"]),
            (r#"a'b'"c"d"#, &["abcd"]),
            (r#"a '' """#, &["a", "", ""]),
            (r#"'a\n"b' "c\n\"d\\" "#, &[r#"a\n"b"#, r#"c\n"d\"#]),
            ("sh -c 'a && b; $X > \"y\"'", &["sh", "-c", "a && b; $X > \"y\""]),
            ("é 'ü ö'", &["é", "ü ö"]),
            ("  ", &[]),
            // A line that goes on in the next one.
            ("run \\\n  --port \\\n  80\\\n80", &["run", "--port", "8080"]),
            ("\"a\\\nb\" 'c\\\nd'", &["ab", "c\\\nd"]),
            ("a \\\n", &["a"]),
            // What is no variable stays none when variables are filled in.
            (r#"\$PORT "\$PORT" \$\$"#, &["$$PORT", "$$PORT", "$$$$"]),
            ("'$PORT' \"$PORT\"", &["$PORT", "$PORT"]),
        ];
        for (text, words) in cases {
            assert_eq!(
                split(text).as_deref(),
                Ok(words.iter().map(ToString::to_string).collect::<Vec<_>>().as_slice()),
                "{text}"
            );
        }
    }

    #[test]
    fn what_cannot_be_split_says_what_is_wrong_and_where() {
        for (text, said) in [
            ("a 'b c", "the quote ' at character 3 of it is not closed"),
            ("a \"b\\\"", "the quote \" at character 3 of it is not closed"),
            ("a b\\", "it ends with a backslash"),
            ("cd web && npm start", "& at character 8 of it needs a shell"),
            ("a | b", "| at character 3 of it needs a shell"),
            ("a $(b)", "( at character 4 of it needs a shell"),
        ] {
            let error = split(text).unwrap_err();
            assert!(error.starts_with(said), "{text}: {error}");
        }
    }
}
