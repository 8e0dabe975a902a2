"""`make campaign`: every fault of `faults.py`, two at a time, and a table of how they ended.

    python -m tests.faults.campaign --out FOLDER [--only WORDS ...] [--seed N] [--jobs N]

Exit code 0 if every fault took place and none ended badly. The last line is `name=value` pairs for programs. The
folder has the table, the same as JSON, and what the runs left.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from tests.faults.campaign.faults import Faults
from tests.faults.campaign.results import Attempt, Result, sum_up, write_results
from tests.faults.campaign.site import Site
from tests.helpers.command_server import running_command_server
from tests.helpers.prefect_server import running_prefect_server


def main() -> int:
    """Run the campaign that the command line asks for."""
    options = _read_options()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}")
    began = time.monotonic()
    results: list[Result] = []
    prefect = options.out / "prefect"
    prefect.mkdir(parents=True)
    with ExitStack() as resources:
        server = resources.enter_context(running_prefect_server(prefect))
        environment = resources.enter_context(running_command_server(prefect, server))
        # Each job has a site with a store of its own: what a power cut takes at one is not missed at another.
        sites = [Site(options.out / f"site-{number}", environment) for number in range(1, options.jobs + 1)]
        all_faults = [Faults(site, random.Random(seed), resources, _say) for site in sites]
        names = [fault.name for fault in all_faults[0].list_all() if _is_wanted(fault.name, options.only)]
        for result in _try_all(names, all_faults):
            results.append(result)
            results.sort(key=lambda result: names.index(result.fault))
            write_results(results, options.out)
    _say("")
    print(f"table {options.out / 'campaign.md'}")
    print(sum_up(results, time.monotonic() - began))
    return int(not results or any(result.is_bad for result in results))


def _try_all(names: Sequence[str], all_faults: Sequence[Faults]) -> Iterator[Result]:
    """Cause the faults of these names, one at a time at each site; yield the result of each."""
    free: SimpleQueue[Faults] = SimpleQueue()
    for faults in all_faults:
        free.put(faults)

    def try_where_free(name: str) -> Result:
        faults = free.get()
        try:
            return _try(faults, name)
        finally:
            free.put(faults)

    pool = ThreadPoolExecutor(len(all_faults))
    try:
        for tried in as_completed([pool.submit(try_where_free, name) for name in names]):
            yield tried.result()
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C nothing else is begun


def _try(faults: Faults, name: str) -> Result:
    _say(name)
    began = time.monotonic()
    try:
        attempt = faults.attempt(name)
    except Exception as error:  # noqa: BLE001 - a campaign of hours goes on, and says so in its table
        attempt = Attempt(1, 0, "bad", f"{type(error).__name__}: {error}")
    result = Result(name, attempt.points, attempt.fired, attempt.verdict, time.monotonic() - began, attempt.note)
    mark = "BAD  " if result.is_bad else "ok   "
    _say("")
    print(f"{mark}{result.seconds:5.0f} s  {result.fired} of {result.points}  {result.verdict:<11}  {name}", flush=True)
    if result.is_bad:
        print(f"      {result.note}", flush=True)
    return result


def _say(text: str) -> None:
    """What is being done, on a line that the next one replaces."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text[:110]}", end="", flush=True)


def _is_wanted(name: str, only: Sequence[str] | None) -> bool:
    return not only or any(words.lower() in name.lower() for words in only)


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make campaign", description="Cause every fault and see how it ends.")
    parser.add_argument("--out", type=Path, required=True, help="folder to make; it must not be there yet")
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="faults with any of these in their name")
    parser.add_argument("--seed", type=int, help="decides which bits flip; drawn if not given")
    parser.add_argument("--jobs", type=int, default=2, help="faults that are caused at a time (default 2)")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: expected 1 or more.")
    options.out = options.out.absolute()
    if options.out.exists():
        parser.error(f"--out {options.out}: it is there already. Name a new folder, or remove this one.")
    return options


if __name__ == "__main__":
    sys.exit(main())
