"""What a person is told whose file is not TOML: the line, and what was probably meant."""

from pathlib import Path

import pytest

from storage.errors import ConfigurationError
from tasks.config.load import load_configuration

HINTS = {
    "run = demo": 'Put text in quotes: "demo"',
    "source = path/to/data  # mine": 'Put text in quotes: "path/to/data"',
    "text = prompt text": 'Put text in quotes: "prompt text"',
    'source = "C:\\Users\\me"': "Use single quotes: 'C:\\Users\\me'",
    'source = "part-\\d+"': "Use single quotes: 'part-\\d+'",
    "source = C:\\data": "Put text in quotes: 'C:\\data'",
    "compile = True": "Write true in lower case",
    "column = None": "Delete the line",
    "steps = 20,000": "Write the number without commas: 20_000 or 20000",
    "numeric = [age, links]": "Put each text in quotes",
    "run: demo": "This is YAML",
    '{"run": "demo"}': "This is JSON",
    "steps = 5\nsteps = 6": "This key is there twice",
}


@pytest.mark.parametrize("line", HINTS)
def test_a_usual_mistake_is_answered_with_the_line_and_what_to_write(tmp_path: Path, line: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"# A comment\n{line}\nsteps_after = 1\n")
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(path)
    message = str(caught.value)
    assert message.startswith(f"The configuration {path} is not valid TOML: ")
    assert f"the line: {line.splitlines()[-1]}\n" in message and HINTS[line] in message


def test_a_line_that_shows_no_usual_mistake_is_shown_without_a_guess(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[data\n")
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(path)
    assert "the line: [data" in str(caught.value) and "what to do" not in str(caught.value)
