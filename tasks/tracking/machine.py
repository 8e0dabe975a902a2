"""Figures of this machine while it trains, under the names that MLflow gives to system metrics.

Invariant: what cannot be measured is left out; nothing here waits for longer than a few seconds, or raises.
"""

import subprocess
from collections.abc import Iterator, Mapping

import psutil

GPU_FIELDS = {
    "utilization.gpu": "utilization_percentage",
    "memory.used": "memory_usage_megabytes",
    "power.draw": "power_usage_watts",
}
GPU_QUESTION = ["nvidia-smi", f"--query-gpu=index,{','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
GPU_SECONDS = 5.0
MEGABYTE = 1e6


class Averages:
    """The means of what was measured since they were last taken, by name."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, figures: Mapping[str, float]) -> None:
        """One measurement of some of them."""
        for name, value in figures.items():
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, count + 1)

    def take(self) -> dict[str, float]:
        """The means; from here on anew."""
        sums, self._sums = self._sums, {}
        return {name: round(total / count, 6) for name, (total, count) in sums.items()}


class Machine:
    """Processor and memory of this machine, and its GPUs where there are some of NVIDIA's."""

    def __init__(self) -> None:
        self._has_gpus = True
        psutil.cpu_percent(None)  # the first answer means nothing; each one counts from the one before

    def measure(self) -> dict[str, float]:
        """As they are now; the processor since the last call."""
        memory = psutil.virtual_memory()
        figures = {
            "system/cpu_utilization_percentage": psutil.cpu_percent(None),
            "system/system_memory_usage_megabytes": (memory.total - memory.available) / MEGABYTE,
            "system/system_memory_usage_percentage": memory.percent,
        }
        return figures | dict(self._measure_gpus())

    def _measure_gpus(self) -> Iterator[tuple[str, float]]:
        if not self._has_gpus:
            return
        try:
            # Not `run`: it waits for a program that it has killed, and one that waits for its driver may never end.
            question = subprocess.Popen(GPU_QUESTION, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            self._has_gpus = False  # there is no such program
            return
        try:
            answer, _ = question.communicate(timeout=GPU_SECONDS)
        except subprocess.TimeoutExpired:
            question.kill()
            self._has_gpus = False  # its driver hangs, or is too busy to be asked
            return
        yield from read_gpus(answer if question.returncode == 0 else "")


def read_gpus(text: str) -> Iterator[tuple[str, float]]:
    """Name and value of each figure in what `GPU_QUESTION` answers: a line for each GPU."""
    for line in text.splitlines():
        index, *values = [part.strip() for part in line.split(",")]
        for name, value in zip(GPU_FIELDS.values(), values, strict=False):
            try:
                yield f"system/gpu_{index}_{name}", float(value)
            except ValueError:
                continue  # "[N/A]": this GPU does not report it
