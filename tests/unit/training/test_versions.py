"""Which versions of libraries and devices a checkpoint was made with, and what changed since."""

from training.checkpointing.versions import describe_version_changes


def test_a_changed_library_is_reported_and_an_unchanged_one_is_not() -> None:
    made_with = {"torch": "2.12.0", "device": "cpu AVX2"}
    assert describe_version_changes(made_with, dict(made_with)) is None
    reported = describe_version_changes(made_with, {"torch": "2.13.0", "device": "cpu AVX2"})
    assert reported is not None
    assert "torch was 2.12.0, is 2.13.0 now" in reported
    assert "cpu" not in reported
