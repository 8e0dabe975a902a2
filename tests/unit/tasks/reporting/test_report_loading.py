"""What a report is made with is loaded while the ranks evaluate, and not before: it takes longer than to make one."""

import json
import subprocess
import sys

from tests.helpers.commands import ROOT

CODE = """
import json, sys
import tasks.evaluate
from tasks.reporting.written import ReportLoading

found = [sorted({"matplotlib", "jinja2", "duckdb", "scipy.sparse"} & sys.modules.keys())]
with ReportLoading(with_baseline=True):
    pass
found.append(sorted({"matplotlib", "jinja2", "duckdb", "scipy.sparse"} & sys.modules.keys()))
print(json.dumps(found))
"""


def test_an_evaluation_loads_what_the_report_needs_when_its_ranks_work() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert not {"matplotlib", "scipy.sparse"} & set(before)
    assert after == ["duckdb", "jinja2", "matplotlib", "scipy.sparse"]
