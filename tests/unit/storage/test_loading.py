"""A block in which libraries are loaded without Python's collector."""

import gc

import pytest

from storage.loading import loading_libraries


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_off_in_the_block_and_as_before_after_it_even_where_a_library_is_missing(was_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(ModuleNotFoundError), loading_libraries():
            assert not gc.isenabled()
            raise ModuleNotFoundError
        assert gc.isenabled() == was_on
    finally:
        (gc.enable if before else gc.disable)()
