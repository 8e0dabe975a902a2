"""`make campaign`: every fault of the catalogue, one after the other, and a table of how they ended.

    python -m tests.faults.campaign --out FOLDER [--only WORDS ...] [--seed N]

Exit code 0 if every fault took place and none ended badly. The last line is `name=value` pairs for programs. The
folder has the table, the same as JSON, and what the runs left.
"""

import argparse
import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.faults.campaign.catalogue import Catalogue, Entry
from tests.faults.campaign.results import Attempt, Result, sum_up, write_results
from tests.faults.campaign.site import Site
from tests.helpers.prefect_server import running_prefect_server


def main() -> int:
    """Run the campaign that the command line asks for."""
    options = _read_options()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}")
    results: list[Result] = []
    prefect = options.out / "prefect"
    prefect.mkdir(parents=True)
    with running_prefect_server(prefect) as environment, ExitStack() as resources:
        site = Site(options.out, environment)
        site.prepare()
        for entry in Catalogue(site, random.Random(seed), resources, _say).entries():
            if not options.only or any(words.lower() in entry.name.lower() for words in options.only):
                results.append(_try(entry))
                write_results(results, options.out)
    _say("")
    print(f"table {write_results(results, options.out)}")
    print(sum_up(results))
    return int(not results or any(result.is_bad for result in results))


def _try(entry: Entry) -> Result:
    _say(entry.name)
    began = time.monotonic()
    try:
        attempt = entry.attempt()
    except Exception as error:  # noqa: BLE001 - a campaign of half an hour goes on, and says so in its table
        attempt = Attempt(1, 0, "bad", f"{type(error).__name__}: {error}")
    result = Result(entry.name, attempt.points, attempt.fired, attempt.verdict, time.monotonic() - began, attempt.note)
    mark = "BAD  " if result.is_bad else "ok   "
    _say("")
    print(f"{mark}{result.seconds:5.0f} s  {result.fired} of {result.points}  {result.verdict:<11}  {entry.name}")
    if result.is_bad:
        print(f"      {result.note}")
    return result


def _say(text: str) -> None:
    """What is being done, on a line that the next one replaces."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text[:110]}", end="", flush=True)


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make campaign", description="Cause every fault and see how it ends.")
    parser.add_argument("--out", type=Path, required=True, help="folder to make; it must not be there yet")
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="faults with any of these in their name")
    parser.add_argument("--seed", type=int, help="decides which bits flip; drawn if not given")
    options = parser.parse_args()
    options.out = options.out.absolute()
    if options.out.exists():
        parser.error(f"--out {options.out}: it is there already. Name a new folder, or remove this one.")
    return options


if __name__ == "__main__":
    sys.exit(main())
