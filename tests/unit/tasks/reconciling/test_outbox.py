"""Messages arrive in their order, each once, whatever becomes of the other blocks."""

from tasks.reconciling.outbox import MOST_WAITING, Message, Outbox
from tests.helpers.reconciled import Person


def test_a_block_that_fails_delays_no_other_and_gets_its_messages_later_in_their_order() -> None:
    well, ill = Person("well"), Person("ill", trouble="it was answered with the status 500.")
    outbox = Outbox([ill, well])
    messages = [Message(f"number {number}", "") for number in range(3)]
    for message in messages:
        outbox.put(message)
        outbox.send_all()
    assert (well.subjects, ill.subjects) == (["number 0", "number 1", "number 2"], [])
    assert all(message.is_taken for message in messages)
    ill.trouble = None
    outbox.send_all()
    outbox.send_all()
    assert ill.subjects == well.subjects == ["number 0", "number 1", "number 2"]


def test_a_message_that_no_block_has_taken_is_not_sent_yet() -> None:
    message, outbox = Message("subject", ""), Outbox([Person(trouble="the attempt ended with TimeoutError.")])
    outbox.put(message)
    outbox.send_all()
    assert not message.is_taken


def test_without_a_block_it_is_printed_and_that_is_all() -> None:
    message = Message("subject", "")
    Outbox([]).put(message)
    assert message.is_taken


def test_of_a_block_that_fails_for_long_the_last_messages_are_kept() -> None:
    person = Person(trouble="it was answered with the status 500.")
    outbox = Outbox([person])
    for number in range(MOST_WAITING + 3):
        outbox.put(Message(str(number), ""))
    outbox.send_all()
    person.trouble = None
    outbox.send_all()
    assert person.subjects == [str(number) for number in range(3, MOST_WAITING + 3)]
