"""Somebody who types `holdfast deploy` on a Prefect server, and what the command says that it did.

Invariant: all that is deployed has a tag of its own, by which nothing of others' is looked at.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect.blocks.notifications import SlackWebhook
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from tests.helpers.messages import require_message
from tests.helpers.operators import CONFIGURATION, Operator
from tests.helpers.prefect_server import RETRIES_WHILE_BUSY

CONFIG = "run.toml"
POOL = "deploying"


class Deployer:
    """Somebody who types `holdfast deploy` in a folder, on the server of all tests, where all has a tag of its own."""

    def __init__(self, folder: Path, operator: Operator, tag: str) -> None:
        self.folder, self.operator, self.tag = folder, replace(operator, folder=folder), tag
        self.url = str(operator.api.base_url).rstrip("/")
        self.run = f"{tag}-run"
        self.write(CONFIG, self.run)

    @property
    def name(self) -> str:
        return f"scheduled/{self.run}"

    def write(self, name: str, run: str, store: str = "store") -> None:
        """A configuration."""
        text = CONFIGURATION.replace('run = "tiny"', f'run = "{run}"').replace('store = "store"', f'store = "{store}"')
        (self.folder / name).write_text(text)

    def type(self, *arguments: str) -> tuple[int, str]:
        """The command as a person types it: its exit code, and all that it prints."""
        typed = self.operator.type("deploy", *arguments)
        return typed.returncode, typed.stdout + typed.stderr

    def deploy(self, *arguments: str, config: str = CONFIG) -> dict[tuple[str, str], str]:
        """What the command says that it did, by kind and name; on the pool of this file."""
        return {
            (change["kind"], change["name"]): change["did"] for change in self.ask(*arguments, config=config)["changes"]
        }

    def ask(self, *arguments: str, config: str = CONFIG) -> dict[str, Any]:
        exit_code, printed = self.type(config, "--pool", POOL, "--json", *arguments)
        assert exit_code == 0, printed
        return dict(json.loads(printed))

    def require_message(self, name: str, *arguments: str, **words: str) -> None:
        """The command says what the file of this name has."""
        require_message(name, self.folder, ["deploy", *arguments], lambda typed: self.operator.type(*typed), **words)

    def make_block(self, name: str) -> str:
        """A notification block's ID."""
        with temporary_settings({PREFECT_API_URL: self.url, PREFECT_CLIENT_MAX_RETRIES: RETRIES_WHILE_BUSY}):
            return str(SlackWebhook(url="https://hooks.slack.com/services/T/B/K").save(name, overwrite=True))

    def automations(self) -> dict[str, dict[str, Any]]:
        return self.operator.automations(self.tag)

    def make_automation(self, name: str) -> None:
        """One that does nothing, of the test's tag."""
        trigger = {"type": "event", "posture": "Reactive", "expect": ["nothing"], "threshold": 1, "within": 0}
        content = {"name": f"{self.tag}-{name}", "trigger": trigger, "actions": [{"type": "do-nothing"}]}
        self.operator.request("POST", "/automations/", json=content)

    def told(self, team: str | None = None) -> set[str]:
        """The automations that tell of a team's runs, or of all."""
        return {f"{self.tag}-{what}{'' if team is None else f'-{team}'}" for what in ("alerts", "reconciler")}

    def is_deployed(self) -> bool:
        return self.operator.api.get(f"/deployments/name/{self.name}").is_success
