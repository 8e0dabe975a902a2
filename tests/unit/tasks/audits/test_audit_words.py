"""The page of an audit in Prefect's UI: text from the data is text there."""

from typing import Any

from tasks.audits.words import render_markdown

RESULT: dict[str, Any] = {
    "run": "first", "address": "/store/runs/first", "ok": False, "steps": 40, "samples": 640, "skipped": [],
    "num_violations": 1, "epochs": [{"epoch": 0, "samples": 600, "complete": True}],
    "violations": [{"kind": "wrong_samples", "message": "Step 7: row 3 (id '![i](http://evil.example)\n| a')."}],
}  # fmt: skip


def test_an_id_of_the_data_is_no_picture_and_no_row_of_its_own() -> None:
    text = render_markdown(RESULT)
    assert text.startswith("# first: BROKEN\n\nThe ledger of run 'first' has 1 violation")
    assert "| 0 | 600 | complete |" in text and "`/store/runs/first`" in text
    (line,) = [line for line in text.splitlines() if "evil.example" in line]
    assert line.startswith("- **wrong samples**: Step 7") and "!\\[i\\](" in line and "\\| a" in line
