"""A rank that is forked computes what a fresh process computes, and a process that cannot be forked is not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.fault_plans import ROOT

# Sums whose last bits depend on the number of threads, by torch's own kernels, MKL and the pool of OpenMP.
COMPUTE = """
import hashlib, json, os, sys
import torch
from training.agents.forks import why_not_fork
from training.determinism import pin_numerics

def compute(threads):
    pin_numerics(threads)
    torch.manual_seed(7)
    values = torch.randn(400_000, requires_grad=True)
    weights = torch.randn(500, 700)
    found = (values.exp().sum() + (weights @ weights.T).softmax(0).log().sum())
    found.backward()
    digest = hashlib.sha256(values.grad.numpy().tobytes() + found.detach().numpy().tobytes()).hexdigest()
    return {"digest": digest, "threads": torch.get_num_threads(), "grad": float(values.grad.sum())}

how, threads = sys.argv[1], int(sys.argv[2])
if how == "fresh":
    print(json.dumps(compute(threads)))
else:
    assert why_not_fork() is None, why_not_fork()
    sys.stdout.flush()
    for _ in range(2):
        child = os.fork()
        if child == 0:
            print(json.dumps(compute(threads)), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
"""


def run(code: str, *arguments: str, **environment: str) -> list[Any]:
    own = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("threads", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_threads_that_are_set_after_the_fork_give_the_bits_of_a_fresh_process(threads: str) -> None:
    counts = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    (fresh,) = run(COMPUTE, "fresh", threads, **counts)
    assert fresh["threads"] == int(threads)
    assert run(COMPUTE, "forked", threads, **counts) == [fresh, fresh]


def test_a_process_with_a_second_thread_is_not_forked() -> None:
    code = """
import json, threading
from training.agents.forks import why_not_fork
over = threading.Event()
other = threading.Thread(target=over.wait)
reasons = [why_not_fork()]
other.start()
reasons.append(why_not_fork())
over.set()
other.join()
print(json.dumps(reasons))
"""
    assert run(code) == [[None, "it has 2 threads"]]


def test_what_an_agent_loads_starts_no_thread(tmp_path: Path) -> None:
    code = """
import json
import training.evaluation, training.segment
from training.agents.forks import why_not_fork
print(json.dumps(why_not_fork()))
"""
    assert run(code, JE_ARROW_MALLOC_CONF="background_thread:false", OMP_NUM_THREADS="4") == [None]
