"""Experiment tracking: what a run's checkpoints record, sent to an MLflow server, and in files beside the run.

`recorder.py` is the way in for a segment, `run_end.py` for the end of a flow; `sending.py` has the rules.
"""
