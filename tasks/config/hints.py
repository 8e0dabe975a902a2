"""Message about a file that is not TOML, or no text: the line, and what is usually meant by it.

Invariant: a hint is given only where the line shows what it is about; the parser's own message always stands before it.
"""

import re
import tomllib

POSITION = re.compile(r"\(at line (\d+), column \d+\)")
ASSIGNED = re.compile(r"\s*[\w.\"'-]+\s*=\s*(.*?)\s*(#.*)?$")
WORDS = {"True": "true", "False": "false", "TRUE": "true", "FALSE": "false"}
NOTHING = ("None", "null", "nil", "NULL", "Null")
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
KEY_OF_YAML = re.compile(r"\s*([\w.-]+)\s*:(\s|$)")
# Of the parser's words, what they mean to who has written the line.
HINTS_BY_MESSAGE = {
    "Cannot overwrite a value": "This key is there twice. Keep one of the two lines.",
    "Cannot declare": "This section is there twice. Put the lines of both below one of the two.",
}


def explain_encoding(error: UnicodeDecodeError) -> str:
    """Where the bytes are that are no UTF-8, and how to have them so."""
    if error.object.startswith(UTF_16):
        return "it is in UTF-16, and must be in UTF-8.\n  what to do: iconv -f UTF-16 -t UTF-8 FILE > NEW"
    line = error.object.count(b"\n", 0, error.start) + 1
    return (
        f"it is not UTF-8 text: line {line:,} has the byte 0x{error.object[error.start]:02x}.\n"
        "  what to do: save it as UTF-8; if it was written as Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW"
    )


def explain_toml_error(text: str, error: tomllib.TOMLDecodeError) -> str:
    """The parser's message, the line that it is about, and a hint where there is one."""
    message = f"{error}."
    position = POSITION.search(str(error))
    lines = text.splitlines()
    if position is None or int(position[1]) > len(lines):
        return message
    line = lines[int(position[1]) - 1]
    hint = next((hint for words, hint in HINTS_BY_MESSAGE.items() if words in message), None) or _find_hint(line)
    return f"{message}\n  the line: {line.strip()}" + (f"\n  what to do: {hint}" if hint else "")


def _find_hint(line: str) -> str | None:
    if line.lstrip().startswith("{"):
        return 'This is JSON. In TOML a key and its value are a line, run = "demo", and a section begins with [data].'
    if (key := KEY_OF_YAML.match(line)) is not None:
        return f'This is YAML. In TOML it is {key[1]} = "...", with text in quotes, and a section begins with [data].'
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
