"""Colours for a line of code, as HTML spans. Small on purpose: words, numbers, comments."""

from __future__ import annotations

import html
import re

_KEYWORDS = {
    "python": "def return for in if else with as import from del class None True False not and or",
    "cpp": (
        "static const void int32_t int64_t float double char bool return for if else extern auto "
        "template struct typedef sizeof constexpr class int goto define pragma include"
    ),
    "ir": (
        "input return graph define program inputs arena buffer kernel steps for inner outer reduce "
        "store allocate launch call free on call over yield where output is read write readwrite "
        "shared aten_graph copy into result from extern"
    ),
}
_WORDS = {language: frozenset(words.split()) for language, words in _KEYWORDS.items()}
_COMMENTS = {"python": "#", "cpp": "//", "ir": "#"}
_TOKEN = re.compile(
    r"""(?P<string>"[^"]*"|'[^']*')|(?P<number>\b\d[\w.]*)|(?P<name>%?[A-Za-z_]\w*)"""
)


def highlight(text: str, language: str) -> str:
    """One line as escaped HTML with `<s>` for words of the language, `<u>` for numbers,
    `<q>` for strings and `<em>` for comments."""
    code, comment = _split_comment(text, _COMMENTS[language])
    words = _WORDS[language]
    pieces: list[str] = []
    at = 0
    for token in _TOKEN.finditer(code):
        pieces.append(html.escape(code[at : token.start()]))
        pieces.append(_piece(token, words))
        at = token.end()
    pieces.append(html.escape(code[at:]))
    if comment:
        pieces.append(f"<em>{html.escape(comment)}</em>")
    return "".join(pieces)


def _piece(token: re.Match[str], words: frozenset[str]) -> str:
    shown = html.escape(token[0])
    if token.lastgroup == "string":
        return f"<q>{shown}</q>"
    if token.lastgroup == "number":
        return f"<u>{shown}</u>"
    return f"<s>{shown}</s>" if token[0] in words else shown


def _split_comment(text: str, mark: str) -> tuple[str, str]:
    for found in re.finditer(re.escape(mark), text):
        before = text[: found.start()]
        if before.count('"') % 2 == 0 and before.count("'") % 2 == 0:
            return before, text[found.start() :]
    return text, ""
