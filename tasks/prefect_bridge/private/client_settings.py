"""Prefect's settings for a block, without reading and checking each of them again."""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect.context import SettingsContext, get_settings_context
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, Settings

USES = (
    "prefect.context.SettingsContext",
    "prefect.context.get_settings_context",
    "prefect.settings.Settings.copy_with_update",
)

# Prefect's settings as they were, and with a change. Prefect checks every one of its settings for each copy.
_changed: tuple[Settings, Settings] | None = None


@contextmanager
def without_retries() -> Iterator[None]:
    """Within, Prefect's clients ask once, where they ask again and again for a minute by default.

    Uses `SettingsContext`, `get_settings_context` and `Settings.copy_with_update`. The public `temporary_settings`
    copies, and so checks, all settings each time. Without it a call to a server that is away takes a minute.
    """
    context = get_settings_context()
    with SettingsContext(profile=context.profile, settings=_with_no_retries(context.settings)):
        yield


def _with_no_retries(settings: Settings) -> Settings:
    global _changed
    if _changed is None or _changed[0] is not settings:
        _changed = settings, settings.copy_with_update({PREFECT_CLIENT_MAX_RETRIES: 0})
    return _changed[1]
