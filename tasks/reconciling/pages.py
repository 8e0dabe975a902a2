"""The pages: what a person is told of, in which words, and that it is over.

Invariant: a page says which run of which store, on which host and at which step, how urgent it is, what happened and
what to do; its kind is a row of deployments/runbook.md. No page has a password or an address with one in it.
"""

from typing import Literal

from pydantic import Field

from storage.objects.s3.address import without_secrets
from storage.runs.run_records import Record
from tasks.text import duration

Kind = Literal["run-dead", "run-stuck", "run-needs-person", "store-away", "store-refuses", "server-away"]
Severity = Literal["warning", "critical"]
RUNBOOK = "deployments/runbook.md, section Pages"
# A warning needs nobody at night: it is over by itself, or a critical page follows.
SEVERITIES: dict[Kind, Severity] = {
    "run-dead": "warning",
    "run-stuck": "critical",
    "run-needs-person": "critical",
    "store-away": "critical",
    "store-refuses": "critical",
    "server-away": "critical",
}
DO: dict[Kind, str] = {
    "run-dead": "Nothing, if a flow run goes on: from the promoted checkpoint. Else start the run again: holdfast run "
    "CONFIG",
    "run-stuck": "Look whether the deployment or its schedule is paused, and whether a worker of its pool is there. "
    "Start the run again: holdfast run CONFIG",
    "run-needs-person": "What the message says. Then start the run again: holdfast run CONFIG",
    "store-away": "Bring the store, or the network to it, back. Until then no state is set, and no flow run begun.",
    "store-refuses": "Give the reconciler's process, and the workers, credentials that the store accepts, or put right "
    "what the message names.",
    "server-away": "Start Prefect's server, or bring the network to it back. Training goes on, and nothing new begins.",
}
OVER: dict[Kind, str] = {
    "run-dead": "The run goes on, or has ended in good order.",
    "run-stuck": "The run goes on, or has ended in good order.",
    "run-needs-person": "The run has got on.",
    "store-away": "The store answers again.",
    "store-refuses": "The store answers again.",
    "server-away": "Prefect's server answers again.",
}


class Page(Record):
    """One thing that a person is to know, as long as it holds."""

    kind: Kind
    about: str = Field(description="The run's name, or the address of what is away, without secrets.")
    address: str = Field(description="Of the run or the store.")
    what: str = Field(description="What happened, in sentences.")
    owner: str | None = Field(None, description="Of the run, as its configuration has it.")
    host: str | None = Field(None, description="Of who held the run.")
    step: str | None = Field(None, description="'step 120 of 300'.")

    @property
    def severity(self) -> Severity:
        return SEVERITIES[self.kind]

    @property
    def subject(self) -> str:
        return f"[{self.severity}] {self.kind}: {self.about}"

    @property
    def body(self) -> str:
        return "\n".join([self.what, f"What to do: {DO[self.kind]}", *self._details(), f"{RUNBOOK}: {self.kind}"])

    @property
    def over_subject(self) -> str:
        return f"[over] {self.kind}: {self.about}"

    def over_body(self, seconds: float | None) -> str:
        """That it is over, and after how long where that is known."""
        after = "" if seconds is None else f" After {duration(seconds)}."
        return "\n".join([f"{OVER[self.kind]}{after}", f"It was: {self.what}", *self._details()])

    def _details(self) -> list[str]:
        named = {"Owner": self.owner, "Host": self.host, "Where it stands": self.step}
        return [f"Address: {self.address}", *(f"{name}: {value}" for name, value in named.items() if value is not None)]


def page_of_place(kind: Kind, address: str, what: str) -> Page:
    """Of a store or a server. `what` has no secret, as no message of an error has one."""
    shown = without_secrets(address)
    return Page(kind=kind, about=shown, address=shown, what=what)
