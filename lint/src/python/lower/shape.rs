//! How deep the syntax tree of a token stream can be, without walking the tree.

use ruff_python_ast::token::{Token, TokenKind};

/// Generous also for an unoptimised build.
pub(super) const DROP_BYTES_PER_LEVEL: usize = 2 * 1024;
/// Above this a tree is not dropped at all.
pub(super) const DROP_BYTES_MAX: usize = 1 << 30;

/// Tokens of one open bracket (or of the line itself) that may each be a level.
#[derive(Default)]
struct Open {
    levels: usize,
    /// Commas of a lambda's parameters do not end the lambda.
    has_lambda: bool,
}

/// No tree of these tokens is deeper: every level costs at least one token that is neither a
/// name nor a literal, and a comma ends all that its bracket has collected.
pub(super) fn depth_bound(tokens: &[Token]) -> usize {
    let mut deepest = 0;
    let mut indents = 0_usize;
    let mut open = vec![Open::default()];
    let mut sum = 0_usize;
    for token in tokens {
        if open.is_empty() {
            open.push(Open::default());
        }
        let here = open.last_mut().expect("just pushed");
        match token.kind() {
            kind if is_leaf(kind) => continue,
            TokenKind::Comma if !here.has_lambda => {
                sum -= std::mem::take(&mut here.levels);
            }
            TokenKind::Newline => {
                open.clear();
                sum = 0;
            }
            TokenKind::Indent => indents += 1,
            TokenKind::Dedent => indents = indents.saturating_sub(1),
            kind => {
                here.levels += 1;
                here.has_lambda |= kind == TokenKind::Lambda;
                sum += 1;
                match kind {
                    TokenKind::Lpar | TokenKind::Lsqb | TokenKind::Lbrace => {
                        open.push(Open::default());
                    }
                    TokenKind::Rpar | TokenKind::Rsqb | TokenKind::Rbrace if open.len() > 1 => {
                        sum -= open.pop().map_or(0, |closed| closed.levels);
                    }
                    _ => {}
                }
            }
        }
        deepest = deepest.max(sum + 2 * indents);
    }
    deepest
}

fn is_leaf(kind: TokenKind) -> bool {
    matches!(
        kind,
        TokenKind::Name
            | TokenKind::Int
            | TokenKind::Float
            | TokenKind::Complex
            | TokenKind::String
            | TokenKind::Comment
            | TokenKind::NonLogicalNewline
    )
}
