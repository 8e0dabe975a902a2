"""What agent and supervisor say comes whole and in order, and each hears when the other one is gone."""

import subprocess
import sys

import pytest

from tests.helpers.fault_plans import ROOT
from training.agents.talk import Answer, Talk

ANSWERING = """
import sys
from training.agents.talk import Answer, Talk
talk = Talk.passed_on(int(sys.argv[1]))
print(talk.hear(60), flush=True)
talk.say(Answer.TAKEN)
talk.say(Answer.ENDED)
"""


def test_messages_come_one_by_one_and_the_end_of_the_other_process_comes_last() -> None:
    own, other = Talk.pair()
    command = [sys.executable, "-c", ANSWERING, str(other.descriptor)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, pass_fds=(other.descriptor,)
    ) as process:
        other.close()
        assert own.hear(0) is None and not own.is_over()
        own.say("/an/order of\ntwo lines")
        assert process.stdout is not None and process.stdout.read() == "/an/order of\ntwo lines\n"
    assert not own.is_over(), "what it said is still to be heard"
    assert [own.hear(60), own.hear(60)] == [Answer.TAKEN, Answer.ENDED]
    assert own.is_over()
    with pytest.raises(EOFError):
        own.hear(60)
    with pytest.raises(OSError, match="Broken pipe"):
        own.say("nobody hears this")


def test_one_that_left_without_hearing_is_gone_too() -> None:
    own, other = Talk.pair()
    own.say("unheard")
    other.close()
    assert own.is_over()
    with pytest.raises(EOFError):
        own.hear(60)
