"""Loaded by Python itself at the start of every process whose PYTHONPATH has this folder: takes up a plan of faults."""

import os
import sys

if "HOLDFAST_TEST_FAULTS" in os.environ:
    from tests.helpers.injected_process import take_up_plan

    take_up_plan(sys.orig_argv, os.environ)
