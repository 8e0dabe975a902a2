"""Flow runs of runs' deployments that hold no run, as in a preparation: which of them are dead, by their heartbeats.

Invariant: nothing but the server knows of them. So a flow run is dead only after minutes of looks that the server all
answered, in which no heartbeat of it arrived, and which was heard before. One that lives after all does no harm: it is
set to running as soon as it holds the run.
"""

from collections.abc import Callable, Collection
from uuid import UUID

from tasks.console.announce import announce
from tasks.reconciling.consequences import Consequences, ServerAwayError
from tasks.reconciling.silence import Look, Silence, follow

# Six times what counts at most between two looks. These are a minute apart: about six minutes, and twelve heartbeats.
# Longer than for a holder: events are sent without an answer, and a flow run's process that was cut off connects again
# when it has the next one to send.
DEAD_SECONDS = 180.0


class LoneFlowRuns:
    """Those of one store's runs, looked at again and again."""

    def __init__(self, store_address: str, consequences: Consequences, clock: Callable[[], float]) -> None:
        self._store_address, self._consequences, self._clock = store_address, consequences, clock
        self._silences: dict[UUID, Silence] = {}

    def look(self, held: Collection[str], still_leads: Callable[[], bool]) -> None:
        """One look; those that are dead are set to crashed, if this process still acts for the store.

        `held`: the addresses of runs whose holder lives, or may live. Raises `ServerAwayError`, after which all counts
        begin anew, and what `still_leads` raises.
        """
        try:
            dead = self._find_dead(held)
            if dead and still_leads():
                for id in dead:
                    self._call_dead(id)
        except ServerAwayError:
            self.forget()
            raise

    def forget(self) -> None:
        """All counts begin anew."""
        self._silences.clear()

    def _find_dead(self, held: Collection[str]) -> list[UUID]:
        began = self._clock()
        signs = self._consequences.find_signs(self._store_address, held)
        ended = self._clock()
        looks = {id: Look(began, ended, sign) for id, sign in signs.items()}
        followed = {id: follow(self._silences.get(id), look) for id, look in looks.items()}
        self._silences = {id: silence for id, silence in followed.items() if silence is not None}
        return [id for id, silence in self._silences.items() if silence.seconds >= DEAD_SECONDS]

    def _call_dead(self, id: UUID) -> None:
        name = self._consequences.call_dead(id)
        del self._silences[id]
        if name is not None:
            announce(f"{self._store_address}: the flow run {name} held no run and is dead; it is set to crashed.")
