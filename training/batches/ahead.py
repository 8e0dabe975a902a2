"""The process that assembles the next block while the ranks of its machine take their microbatches from this one.

Threads of a rank would take turns with the one that trains, since one at a time runs Python. Invariant: what a run is
does not depend on this process. It makes files that any rank makes by itself where they are not there yet and none is
making them; what goes wrong here goes wrong again in a rank, which raises it. Were it stopped while it makes one, ranks
would wait for it, until they count as hung. It ends with the rank that started it, however that ends.
"""

import gc
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from io import BufferedReader
from typing import Any, NoReturn

from storage.errors import HoldfastError
from storage.objects.local_store import LocalStore
from training.batches.blocks import open_blocks
from training.batches.microbatches import MicrobatchCut
from training.data.waiting import StoreWait, load_dataset_patiently
from training.spec import SegmentSpec
from training.stopping import follow_parent
from training.titles import name_process
from training.world import World

NAME, TITLE = "holdfast-input", "holdfast input"
MESSAGE_BYTES = 1 << 16
# Of one that ends again and again, ranks do the work.
MOST_STARTS = 4


class AssemblingAhead:
    """The process that works ahead, for the rank that starts it: the first one of its machine, from its main thread.

    A rank that is not the first one has none, until it is. The process is forked from the rank, which has the
    libraries, where the rank says that it `can_fork`: while it has one thread. Else it loads them itself from the
    beginning on. What it is to work on is sent later. When it has ended, as where the system took its memory, another
    one is started, a few times; by then a rank has threads.
    """

    command: tuple[str, ...] = (sys.executable, "-m", "training.batches.ahead")

    def __init__(self, can_fork: bool = False, is_first: bool = True) -> None:
        self._work: dict[str, Any] = {}
        self._num_started = 0
        self._messages = -1
        self._pid: int | None = None
        if is_first:
            self._start(can_fork)

    @property
    def pid(self) -> int | None:
        """Its number; None once it was seen to have ended."""
        return self._pid

    def begin(self, spec: SegmentSpec, world: World, cut: MicrobatchCut) -> None:
        """Send which blocks it assembles, and how their batches are cut."""
        self._work = {"spec": spec.model_dump(mode="json"), "world": world.numbers, "cut": asdict(cut)}
        if self._messages >= 0:
            self._send_work()

    def deal_anew(self, world: World) -> None:
        """The blocks are for other ranks from here on."""
        self._work |= {"world": world.numbers}
        self._send({"world": world.numbers})

    def assemble(self, step: int) -> None:
        """Have the block that begins at `step` assembled soon. Returns at once."""
        if self._has_ended(os.WNOHANG) and self._num_started < MOST_STARTS:
            self._start(can_fork=False)
            self._send_work()
        self._send(step)

    def close(self) -> None:
        """End it, whatever it is at; returns when it is gone."""
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)  # it was not reaped, so the number is no other's
            self._has_ended(0)
        self._close_messages()

    def _start(self, can_fork: bool) -> None:
        self._close_messages()
        reading, self._messages = os.pipe()
        if can_fork:
            sys.stdout.flush()
            sys.stderr.flush()
            self._pid = os.fork()
            if self._pid == 0:
                os.close(self._messages)
                work_and_leave(reading)
        else:
            as_input = [(os.POSIX_SPAWN_DUP2, reading, 0)]
            self._pid = os.posix_spawn(sys.executable, self.command, os.environ, file_actions=as_input)
        os.close(reading)
        self._num_started += 1

    def _has_ended(self, options: int) -> bool:
        if self._pid is not None and os.waitpid(self._pid, options)[0]:
            self._pid = None
        return self._pid is None

    def _close_messages(self) -> None:
        if self._messages >= 0:
            os.close(self._messages)
            self._messages = -1

    def _send_work(self) -> None:
        self._send(self._work)
        os.set_blocking(self._messages, False)

    def _send(self, message: object) -> None:
        # It may be gone, or be stopped and have read nothing for long. Then ranks assemble blocks themselves.
        if self._messages >= 0:
            with suppress(BrokenPipeError, BlockingIOError):
                os.write(self._messages, json.dumps(message).encode() + b"\n")


def work_and_leave(messages: int) -> NoReturn:
    """Do what comes through the pipe, until that ends; never returns."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the rank only notes it
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the ranks, which leave in good order
        name_process(NAME, TITLE)
        follow_parent()
        with open(messages, "rb") as steps:
            _assemble(steps)
    except Exception:  # noqa: BLE001 - for readers of the log; the ranks go on
        traceback.print_exc()
    os._exit(0)  # threads that read ahead are not waited for


def _assemble(steps: BufferedReader) -> None:
    """Read what to work on, then steps, and who the ranks are where that changes, until there is no more."""
    line = steps.readline()
    if not line:
        return  # the rank has ended before it had work
    work = json.loads(line)
    spec, world = SegmentSpec.model_validate(work["spec"]), World(*work["world"])
    cut = MicrobatchCut(**work["cut"])
    store = spec.open_store()
    dataset = load_dataset_patiently(spec, store, StoreWait(spec.store_seconds))
    # From a bucket windows are fetched ahead in a thread. From a folder they are here as soon as they are decoded, and
    # this process is ahead already.
    looks_ahead = not isinstance(store, LocalStore)
    blocks = open_blocks(spec, world, store, dataset, cut, looks_ahead, assembles_for_all=True)
    gc.freeze()  # what has been loaded so far is never garbage, and is not looked through again and again
    begun = b""
    while received := steps.read1(MESSAGE_BYTES):
        *lines, begun = (begun + received).split(b"\n")
        newest = None  # of the steps before, ranks have need no more
        for message in map(json.loads, lines):
            if isinstance(message, int):
                newest = message
            else:
                blocks.world, newest = World(*message["world"]), None
        # Of a store that cannot be reached, or a shard that is damaged, a rank raises it when it comes to this block.
        with suppress(HoldfastError):
            if newest is not None and newest < spec.train.num_steps:
                blocks.get(newest)


if __name__ == "__main__":
    work_and_leave(sys.stdin.fileno())
