"""Message about a file that is not TOML: the line, and what is usually meant by it.

Invariant: a hint is given only where the line shows what it is about; the parser's own message always stands before it.
"""

import re
import tomllib

POSITION = re.compile(r"\(at line (\d+), column \d+\)")
ASSIGNED = re.compile(r"\s*[\w.\"'-]+\s*=\s*(.*?)\s*(#.*)?$")
WORDS = {"True": "true", "False": "false", "TRUE": "true", "FALSE": "false"}
NOTHING = ("None", "null", "nil", "NULL", "Null")


def explain_toml_error(text: str, error: tomllib.TOMLDecodeError) -> str:
    """The parser's message, the line that it is about, and a hint where there is one."""
    message = f"{error}."
    position = POSITION.search(str(error))
    lines = text.splitlines()
    if position is None or int(position[1]) > len(lines):
        return message
    line = lines[int(position[1]) - 1]
    hint = _find_hint(line)
    return f"{message}\n  the line: {line.strip()}" + (f"\n  what to do: {hint}" if hint else "")


def _find_hint(line: str) -> str | None:
    assigned = ASSIGNED.match(line)
    value = assigned[1] if assigned is not None else ""
    if "\\" in value and value.startswith('"'):
        return f"A backslash has a meaning of its own in double quotes. Use single quotes: {_quoted(value[1:-1])}"
    if value in WORDS:
        return f"Write {WORDS[value]} in lower case."
    if value in NOTHING:
        return "TOML has no such value. Delete the line: the field then has its default."
    if re.fullmatch(r"[+-]?[\d,]+", value) and "," in value:
        return f"Write the number without commas: {value.replace(',', '_')} or {value.replace(',', '')}"
    if re.match(r"[A-Za-z~/.]", value):
        return f"Put text in quotes: {_quoted(value) if chr(92) in value else chr(34) + value + chr(34)}"
    if value.startswith("[") and re.search(r"[\[,]\s*[A-Za-z~/]", value):
        return 'Put each text in quotes, for instance ["age_days", "num_links"].'
    return None


def _quoted(text: str) -> str:
    return f"'{text}'"
