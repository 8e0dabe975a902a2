"""`make gpu`: what a GPU answers to the questions that only a GPU can, as a table in the last lines.

First the tests of tests/gpu, then a drill of each kind of model, target and optimizer, then steps of models of some
sizes and single passes over all values, each in a process of its own that may take half of the time that is left: what
fails, or finds no time, is a row, and the others go on. With
PROBE_DEVICE=cpu in the environment the same is tried on a CPU, with small sizes, and what is printed is no measurement.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from storage.processors import count_processors
from tasks.cluster.processes import kill_tree
from training.checkpointing.versions import read_versions
from training.determinism import numerics_environment

ROOT = Path(__file__).parents[2]
DEVICE = os.environ.get("PROBE_DEVICE", "cuda")
# Size, microbatches, sum, how: what training/README.md has figures of.
STEPS = {
    "cuda": (
        ("150 M", 4, "exact", "eager"), ("150 M", 4, "fast", "eager"), ("150 M", 4, "exact", "compiled"),
        ("400 M", 8, "exact", "eager"), ("400 M", 8, "fast", "eager"), ("150 M", 32, "exact", "eager"),
    ),
    "cpu": (("tiny", 4, "exact", "eager"), ("tiny", 4, "fast", "eager"), ("tiny", 4, "exact", "compiled")),
}  # fmt: skip
# 16 bits take a CPU minutes; other tests have that.
SELECTED = {"cuda": [], "cpu": ["-k", "fp32"]}
DRILLED = {"cuda": (["fp32"], ["bf16", "--only", "pretrained, mean", "LoRA"]), "cpu": (["fp32", "--only", "LoRA"],)}
DRILL_CORES = 3  # what a drill of up to three ranks keeps busy
VERDICT = re.compile(r"([\w][^:]*): (\w.*)")
FEWEST_SECONDS = 15
Row = tuple[str, str]


def main() -> int:
    """Ask, print the table; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="make gpu")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder for what the parts print")
    parser.add_argument("--seconds", type=float, default=1200, help="at most so long, all parts together")
    options = parser.parse_args()
    if DEVICE not in STEPS:
        parser.error(f"PROBE_DEVICE expects {' or '.join(STEPS)}, found {DEVICE!r}")
    if DEVICE == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU on this machine: see what `nvidia-smi` says. PROBE_DEVICE=cpu tries it here")
    parts = Parts(options.out, options.seconds)
    versions = read_versions(torch.device(DEVICE))
    rows: list[Row] = [("machine", ", ".join(f"{name} {version}" for name, version in versions.items() if version))]
    rows += parts.run_tests()
    rows += [row for kinds in DRILLED[DEVICE] for row in parts.drill(*kinds)]
    for size, microbatches, sum_, how in STEPS[DEVICE]:
        found = parts.measure("step", DEVICE, size, str(microbatches), sum_, how)
        rows.append((f"step: {size}, {microbatches} microbatches, {sum_}, {how}", _describe_step(found)))
    found = parts.measure("passes", DEVICE)
    rows.append(("one pass", found.get("failed") or ", ".join(f"{name}: {value}" for name, value in found.items())))
    (options.out / "answers.json").write_text(json.dumps({"rows": rows, "measured": parts.measured}, indent=1))
    table = Table("asked", "answer", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    print(f"What the parts printed is in {options.out}.\n")
    Console(width=150, highlight=False, markup=False).print(table)
    return int(parts.has_failed)


class Parts:
    """The parts, one after the other; what each prints is in a file of `folder`."""

    def __init__(self, folder: Path, seconds: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.measured: list[dict[str, Any]] = []
        self.has_failed = False
        self._folder = folder
        self._deadline = time.monotonic() + seconds
        self._environment = numerics_environment(os.environ, threads=1)

    def run_tests(self) -> list[Row]:
        """A row for each file of tests/gpu: its first sentence, and how many of its tests passed."""
        report = (self._folder / "tests.xml").absolute()
        report.unlink(missing_ok=True)
        workers = min(8, count_processors() // 2) if DEVICE == "cuda" else 0
        options = ["-n", str(workers), "-o", "junit_family=xunit1", f"--junitxml={report}", *SELECTED[DEVICE]]
        failed, _ = self._run("tests", ["pytest", "tests/gpu", *options])
        self.has_failed |= failed is not None
        if not report.exists():
            return [("tests/gpu", failed or "no report")]
        outcomes: dict[str, Counter[str]] = {}
        for case in ElementTree.parse(report).iter("testcase"):
            kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
            outcomes.setdefault(str(case.get("file")), Counter())[min(kinds, default="passed")] += 1
        return [(_first_sentence(ROOT / file), _count(counted)) for file, counted in sorted(outcomes.items())]

    def drill(self, precision: str, *only: str) -> list[Row]:
        """A row for each verdict of `holdfast drill`, of all kinds or `--only` some."""
        at_once = str(max(1, count_processors() // DRILL_CORES))
        options = ["--device", DEVICE, "--precision", precision, "--at-once", at_once, *only]
        failed, printed = self._run(f"drills-{precision}", ["tests.faults.drill_kinds", *options])
        self.has_failed |= failed is not None
        verdicts = [found.groups() for found in map(VERDICT.match, printed) if found]
        rows = [(f"drill, {precision}: {kind}", verdict) for kind, verdict in verdicts]
        return rows if failed is None else [*rows, (f"drill, {precision}", failed)]

    def measure(self, module: str, *arguments: str) -> dict[str, Any]:
        """What a module of tests/benchmarks/gpu prints as JSON; or `failed`, with why."""
        failed, printed = self._run(module, [f"tests.benchmarks.gpu.{module}", *arguments])
        found: dict[str, Any] = {"failed": failed} if failed else json.loads(printed[-1])
        self.has_failed |= failed is not None
        self.measured.append({"module": module, "arguments": arguments, **found})
        return found

    def _run(self, name: str, module: list[str]) -> tuple[str | None, list[str]]:
        """Why it failed, or None; and the lines that it printed."""
        seconds = (self._deadline - time.monotonic()) / 2
        if seconds < FEWEST_SECONDS:
            return "not asked: --seconds were over", []
        print(f"{' '.join(module)} ...", flush=True)
        path = self._folder / f"{name}.txt"
        with path.open("a+") as file:
            file.write(f"\n$ python -m {' '.join(module)}\n")
            file.flush()
            begin, command = file.tell(), [sys.executable, "-m", *module]
            process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
                kill_tree(process.pid)  # or what it began would go on beside what is measured next
                process.wait()
            file.seek(begin)
            lines = file.read().splitlines()
        if code is None:
            return f"not done after {seconds:.0f} s", lines
        return (f"exit code {code}: {lines[-1] if lines else 'it printed nothing'}" if code else None), lines


def _describe_step(found: dict[str, Any]) -> str:
    if "failed" in found:
        return str(found["failed"])
    words = [
        f"{found['step_seconds']:.3f} s, {found['tokens_per_second']:,} tokens/s, "
        f"{found['parameters'] / 1e6:,.1f} M parameters, {found['tokens']:,} tokens"
    ]
    if "busy_ms" in found:
        busy = found["busy_ms"]
        words.append(
            f"{found['kernels']:,} kernels, busy {sum(busy.values()):.0f} ms: "
            + ", ".join(f"{kind} {milliseconds:.0f}" for kind, milliseconds in busy.items())
        )
        words.append(f"{found['peak_gib']} GiB")
    return "; ".join([*words, f"ready to step after {found['start_seconds']} s"])


def _count(outcomes: Counter[str]) -> str:
    """`5 passed, 1 skipped`, what is bad first."""
    return ", ".join(f"{outcomes[kind]} {kind}" for kind in ("failure", "error", "passed", "skipped") if outcomes[kind])


def _first_sentence(file: Path) -> str:
    documented = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or file.name
    return documented.partition(".")[0]


if __name__ == "__main__":
    sys.exit(main())
