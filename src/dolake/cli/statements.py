"""Text typed or piped into the shell, cut into statements at the semicolons that end them. Pure."""

from __future__ import annotations

import re

# What may hide a semicolon, closed or not; an unclosed one hides everything behind it.
_TOKEN = re.compile(
    r"""'(?:[^']|'')*(?:'|\Z)|"(?:[^"]|"")*(?:"|\Z)|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z)|\$(\w*)\$.*?(?:\$\1\$|\Z)|;""",
    re.DOTALL,
)
_COMMENT = re.compile(r"--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z)|\s", re.DOTALL)


def split(text: str) -> tuple[list[str], str]:
    """The statements that are complete, without their semicolons, and what is left of the text."""
    statements, start = [], 0
    for token in _TOKEN.finditer(text):
        if token[0] == ";":
            if not is_blank(statement := text[start : token.start()]):
                statements.append(statement.strip())
            start = token.end()
    return statements, text[start:]


def is_blank(text: str) -> bool:
    """Nothing but spaces and comments."""
    return not _COMMENT.sub("", text)


def is_command(text: str) -> bool:
    """Whether it is meant for the shell: it begins with a backslash, or is a word that people try."""
    return text.lstrip().startswith("\\") or text.strip().rstrip(";").lower() in ("exit", "quit", "help")


def is_complete(text: str) -> bool:
    """Whether Enter runs the text: a command, or statements of which the last has its semicolon."""
    return is_command(text) or is_blank(split(text)[1])
