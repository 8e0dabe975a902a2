"""Which rank is named where ranks have not the same, and what people read of it."""

from training.checkpointing.equality import describe_unequal_state, describe_wrong_sum

NAMES = ["the optimizer's 'exp_avg.head.bias'", "the weights 'head.bias'", "the weights 'head.weight'"]
SAME = [11, -22, 33]


def labels(count: int) -> list[str]:
    return [f"rank {rank}" for rank in range(count)]


def describe(*rows: list[int]) -> str:
    return describe_unequal_state(1200, NAMES, rows, labels(len(rows)))


def test_of_three_ranks_the_one_that_is_not_as_the_others_is_named_with_what_differs() -> None:
    message = describe(SAME, [11, -23, 33], SAME)
    assert message.startswith("At step 1,200 not all ranks have the same state, so no checkpoint was made of it: ")
    assert "rank 1 differs from most of the 3 ranks in the weights 'head.bias', of 3 tensors." in message
    assert "a memory or a processor there changed bits. The run goes on from its last promoted checkpoint." in message
    assert "take it away and test its memory" in message and "different kinds" in message


def test_of_two_ranks_none_is_named_as_the_wrong_one() -> None:
    message = describe(SAME, [12, -22, 33])
    assert "rank 0 against rank 1, they differ in the optimizer's 'exp_avg.head.bias', of 3 tensors." in message
    assert "No majority shows which is right: either may be wrong." in message


def test_several_ranks_are_named_each_by_its_own_tensor() -> None:
    message = describe([11, -22, 3], SAME, [1, -22, 33], SAME, SAME)
    assert "rank 0 and rank 2 differ from most of the 5 ranks in " in message


def test_two_halves_are_no_majority() -> None:
    other = [11, -22, 34]
    message = describe(SAME, other, other, SAME)
    assert "rank 0 and rank 3 against rank 1 and rank 2, they differ in the weights 'head.weight'" in message


def test_where_each_of_three_has_another_value_none_is_named() -> None:
    message = describe([1, -22, 33], [2, -22, 33], [3, -22, 33])
    assert "rank 0 against rank 1 against rank 2, they differ in " in message


def test_of_many_tensors_the_first_are_named() -> None:
    names = [f"the weights '{number:03d}'" for number in range(100)]
    rows = [[0] * 100, [1] * 100, [0] * 100]
    message = describe_unequal_state(1, names, rows, labels(3))
    assert "in the weights '000', the weights '001', the weights '002' and 97 more, of 100 tensors" in message


def test_a_wrong_sum_is_said_of_those_who_received_it() -> None:
    assert "In step 7 rank 1 received another sum of the gradients" in describe_wrong_sum(7, ["rank 1"], 3)
    everywhere = describe_wrong_sum(7, labels(3), 3)
    assert "all ranks received" in everywhere and "nobody can say which" in everywhere
