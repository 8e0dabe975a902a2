"""Notification blocks of Prefect's server, kept in memory: so that people are told when that server is away, too.

Invariant: what a block has, such as the address of a webhook, is never printed, and nor is what a failed attempt says:
an error may quote it.
"""

import asyncio
import inspect
import threading
from dataclasses import dataclass
from uuid import UUID

import httpx
from prefect.blocks import notifications  # noqa: F401 - makes Prefect's kinds of blocks known
from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.core import Block, UnknownBlockType
from prefect.client.orchestration import SyncPrefectClient

from storage.errors import ConfigurationError
from tasks.prefect_bridge.private.server_requests import find_notification_blocks


@dataclass(frozen=True)
class BlockNotifier:
    """People are told by one block."""

    name: str
    block: NotificationBlock
    lock: threading.Lock

    def send(self, subject: str, body: str) -> str | None:
        """Send a message; why it was not taken, in words without a secret, or None if it was."""
        try:
            with self.lock, self.block.raise_on_failure():
                sending: object = self.block.notify(body, subject)
                if inspect.iscoroutine(sending):  # of a package's own kind of block
                    asyncio.run(sending)
        except httpx.HTTPStatusError as error:
            return f"it was answered with the status {error.response.status_code}."
        except Exception as error:  # noqa: BLE001 - each kind of block has errors of its own
            return f"the attempt ended with {type(error).__name__}."
        return None


def load_notifiers(client: SyncPrefectClient, name: str) -> list[BlockNotifier]:
    """The notification blocks of this name, of whatever kind. Raises `ConfigurationError` if one cannot be loaded."""
    return [_load(name, id) for id in find_notification_blocks(client, name)]


def _load(name: str, id: UUID) -> BlockNotifier:
    try:
        block = Block.load_from_ref(id)
    except (LookupError, ValueError, RuntimeError, UnknownBlockType) as error:
        raise ConfigurationError(
            f"The notification block {name!r} on the server cannot be loaded here ({type(error).__name__}). Its kind "
            "has to be one of Prefect's own, or of a package that is installed. Save it again as "
            "deployments/README.md, section What alerts, shows."
        ) from None
    assert isinstance(block, NotificationBlock), "the server has found it by what it can do"
    return BlockNotifier(f"{name} ({type(block).__name__})", block, threading.Lock())
