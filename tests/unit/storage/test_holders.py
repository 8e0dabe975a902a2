"""A process is called dead only by who could see it."""

import subprocess
import sys
import time

from storage.runs.holders import is_alive, this_process


def test_a_living_process_is_alive_and_one_that_ended_is_dead() -> None:
    assert is_alive(this_process()) is True
    code = "from storage.runs.holders import this_process; print(this_process().model_dump_json())"
    described = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert is_alive(type(this_process()).model_validate_json(described)) is False


def test_a_later_process_with_the_same_number_is_another_one() -> None:
    me = this_process()
    assert is_alive(me.model_copy(update={"start_ticks": me.start_ticks - 1})) is False


def test_nothing_is_said_of_a_process_in_another_container_or_on_another_machine() -> None:
    me = this_process()
    boot = me.place.partition(" ")[0]
    assert is_alive(me.model_copy(update={"place": f"{boot} pid:[1]"})) is None
    assert is_alive(me.model_copy(update={"place": "another boot", "host": me.host})) is None


def test_a_process_knows_how_old_it_is() -> None:
    code = "import time; time.sleep(0.3); from storage.runs.holders import process_age_seconds as age; print(age())"
    began = time.monotonic()
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 0.3 <= float(said) <= time.monotonic() - began + 0.02  # of which the system counts hundredths
