"""`make operate`: what may happen to a server, its workers and its stores in production, and what people then see.

    python -m tests.operating --out FOLDER [--only WORDS ...]

Exit code 0 if every row is right. The folder has the table, and all logs.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.operating import by_machines, by_people, by_processes, by_services
from tests.operating.machines import find_reason_to_skip
from tests.operating.place import made_place
from tests.operating.rows import Operated, Row, write
from tests.operating.runs import Watch

Disturb = Callable[[Operated], Row | list[Row]]
# Each wave begins when the one before it is over; what is in one wave happens at the same time. Two processors do not
# carry the starts of more than four runs at once: the server is then too slow for the seconds that the rows allow.
WAVES: tuple[tuple[Disturb, ...], ...] = (
    (by_people.undisturbed,),
    (by_people.cancelled, by_people.suspended, by_people.stopped, by_people.deleted),
    (
        by_processes.killed_flow_run, by_processes.killed_rank, by_processes.killed_rank_at_start,
        by_processes.killed_agent,
    ),
    (by_people.changed_by_form, by_machines.stopped_worker, by_machines.full_scratch),
    (by_services.store_away_in_evaluation,),
    (by_services.key_refused,),
    (by_services.store_away,),
    (by_services.server_away,),
    (by_services.database_away,),
    (by_machines.killed_machine,),
    (by_machines.stopped_machine,),
    (by_machines.wrong_clock,),
    (by_machines.other_packages,),
    (by_people.nothing_else,),
)  # fmt: skip


def main() -> int:
    """Operate, and print the table."""
    options = _read_options()
    if (reason := find_reason_to_skip()) is not None:
        print(reason)
        return 2
    rows: list[Row] = []
    began = time.monotonic()
    with made_place(options.out) as place:
        operated = Operated(place, Watch(place.store))
        with operated.watch.looking(), ThreadPoolExecutor(max_workers=16) as pool:
            print(f"up after {time.monotonic() - began:.0f} s", flush=True)
            for wave in WAVES:
                wanted = [one for one in wave if _is_wanted(one, options.only)]
                for done in pool.map(lambda one: _try(one, operated), wanted):
                    rows += done
                    write(rows, options.out)
    wrong = [row for row in rows if row.wrong]
    print(f"table {write(rows, options.out)}")
    print(f"rows={len(rows)} wrong={len(wrong)} seconds={time.monotonic() - began:.0f}")
    return int(bool(wrong) or not rows)


def _try(disturb: Disturb, operated: Operated) -> list[Row]:
    began = time.monotonic()
    try:
        done = disturb(operated)
    except Exception as error:  # noqa: BLE001 - the others are tried all the same, and the table says it
        traceback.print_exc()
        done = Row(disturb.__name__.replace("_", " "), "", wrong=[f"{type(error).__name__}: {error}"])
    rows = [done] if isinstance(done, Row) else done
    for row in rows:
        mark = "WRONG" if row.wrong else "right"
        print(f"{mark} {time.monotonic() - began:5.0f} s  {row.disturbance}", flush=True)
        for one in row.wrong:
            print(f"      {one}", flush=True)
    return rows


def _is_wanted(disturb: Disturb, only: Sequence[str] | None) -> bool:
    """The undisturbed run always: all others are held against it."""
    name = disturb.__name__
    return not only or name in ("undisturbed", "nothing_else") or any(words in name for words in only)


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make operate", description="Operate Holdfast, and disturb everything.")
    parser.add_argument("--out", type=Path, required=True, help="folder to make; it must not be there yet")
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="functions with any of these in their name")
    options = parser.parse_args()
    options.out = options.out.absolute()
    if options.out.exists():
        parser.error(f"--out {options.out}: it is there already. Name a new folder, or remove this one.")
    return options


if __name__ == "__main__":
    sys.exit(main())
