"""Views in a folder of the segment's scratch, where the ranks of a machine look for the newest one. Loads no torch.

Of the ranks of one machine their agent commits them here. Of several nodes each has such a folder, with what its own
process found in the store, and what its agent wants. Invariant: a view is whole or not there, and the first one of a
number is the one: it is put if absent. Numbers rise by one, and ranks go over to the newest view only. The folder is
this user's alone.
"""

import os
import uuid
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from storage.objects.private_folder import PRIVATE_MODE
from training.views.view import Going, Member, View, Wanted

FOLDER_NAME, WANTED_NAME, OUT = "views", "wanted.json", "out-"


class ViewFolder:
    """The views of one segment, as they are known on this machine."""

    def __init__(self, segment_folder: Path) -> None:
        self._path = segment_folder / FOLDER_NAME

    def create(self) -> None:
        """Begin with no views. Raises `OSError`."""
        self._path.mkdir(mode=PRIVATE_MODE, exist_ok=True)
        for left in self._path.iterdir():  # of a launch before, under the same fence
            left.unlink()

    @property
    def is_there(self) -> bool:
        """Whether there are to be views: somebody made it who will say who goes on."""
        return self._path.is_dir()

    def commit(self, view: View) -> bool:
        """Put the view if there is none of its number; whether it was ours. Raises `OSError`."""
        return self._put(f"{view.number:06d}.json", view.model_dump_json())

    def has(self, number: int) -> bool:
        """Whether this view was committed."""
        return self._file(number).exists()

    def find(self, number: int) -> View | None:
        """The view of this number; None if it was not committed."""
        try:
            return View.model_validate_json(self._file(number).read_bytes())
        except (OSError, ValidationError):
            return None

    def find_newest(self, after: int) -> View | None:
        """The newest view, if there is one after this number."""
        newest = after
        while self.has(newest + 1):
            newest += 1
        return self.find(newest) if newest > after else None

    def meeting_file(self, number: int) -> Path:
        """The file in which the members of a view meet, on one machine."""
        return self._path / f"{number:06d}-meeting"

    def say_port(self, number: int, port: int) -> None:
        """Note on which port of this machine the members of a view meet. Raises `OSError`."""
        self._put(f"{number:06d}-port", str(port))

    def find_port(self, number: int) -> int | None:
        """The port that was noted for this view; None if its first member has not come, or is elsewhere."""
        try:
            return int((self._path / f"{number:06d}-port").read_text())
        except OSError:
            return None

    def want(self, wanted: Wanted) -> None:
        """Note what this machine's agent wants of the next view. Raises `OSError`."""
        new = self._path / f".{WANTED_NAME}"
        new.write_text(wanted.model_dump_json(), encoding="utf-8")
        new.replace(self._path / WANTED_NAME)

    def find_wanted(self) -> Wanted:
        """What was noted last."""
        try:
            return Wanted.model_validate_json((self._path / WANTED_NAME).read_bytes())
        except (OSError, ValidationError):
            return Wanted()

    def say_ready(self, member: Member) -> None:
        """Tell the agent that this rank can be taken into a view. Raises `OSError`."""
        self._put(f"ready-{member.slot:04d}-{member.life:06d}", "")

    def is_ready(self, member: Member) -> bool:
        return (self._path / f"ready-{member.slot:04d}-{member.life:06d}").exists()

    def say_out(self, slot: int) -> None:
        """Note that no rank is begun in place of this one. On a disk that does not take it, it is not known."""
        with suppress(OSError):
            self._put(f"{OUT}{slot:04d}", "")

    def find_out(self) -> list[int]:
        """The ranks in whose place none is begun any more."""
        return sorted(int(path.name.removeprefix(OUT)) for path in self._path.glob(f"{OUT}*"))

    def say_going(self, number: int, going: Going) -> None:
        """Note that training goes on in this view. On a disk that does not take it, it is not known."""
        with suppress(OSError):
            self._put(self.going_file(number).name, going.model_dump_json())

    def going_file(self, number: int) -> Path:
        """The file in which is noted that training goes on in this view."""
        return self._path / f"{number:06d}-going.json"

    def count_files(self) -> int:
        """How many files there are: more, whenever something was noted that people should know."""
        return len(list(self._path.iterdir())) if self.is_there else 0

    def find_going(self, number: int) -> Going | None:
        """What was noted of this view; None if training did not go on in it, as far as is known."""
        try:
            return Going.model_validate_json(self.going_file(number).read_bytes())
        except (OSError, ValidationError):
            return None

    def _file(self, number: int) -> Path:
        return self._path / f"{number:06d}.json"

    def _put(self, name: str, text: str) -> bool:
        new = self._path / f".{uuid.uuid4().hex}"
        new.write_text(text, encoding="utf-8")
        try:
            os.link(new, self._path / name)
        except FileExistsError:
            return False
        finally:
            new.unlink()
        return True
