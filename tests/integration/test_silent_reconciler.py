"""That nothing is heard of a reconciler is told by the server itself: a real one, with automations, and a webhook."""

import time
from pathlib import Path

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.deploying import automations
from tasks.prefect_bridge.alerts import RECONCILER, RECONCILER_ALIVE, send
from tasks.prefect_bridge.private.server_requests import find_notification_blocks
from tests.helpers.commands import wait_until
from tests.helpers.prefect_server import running_prefect_server
from tests.helpers.webhooks import running_webhook

pytestmark = [pytest.mark.server, pytest.mark.slow]

# In place of five minutes; a server takes no less than ten seconds.
SILENT_SECONDS = 20
TEAM = "search"


def test_a_reconciler_that_falls_silent_is_told_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automations, "RECONCILER_SILENT_SECONDS", SILENT_SECONDS)
    with (
        running_webhook() as (url, texts),
        running_prefect_server(tmp_path, with_automations=True) as server,
        temporary_settings({PREFECT_API_URL: server["PREFECT_API_URL"]}),
        get_client(sync_client=True) as client,
    ):
        CustomWebhookNotificationBlock(name="hook", url=url, json_data={"text": "{{subject}}"}).save(TEAM)
        blocks = find_notification_blocks(client, TEAM)
        for team in (TEAM, None):  # of the other nothing was ever heard
            client.create_automation(automations.tell_of_silent_reconciler(blocks, team))
        for _ in range(6):
            send(RECONCILER_ALIVE, RECONCILER.format(name=TEAM), "It lives.")
            time.sleep(SILENT_SECONDS / 4)  # as the process does between two signs
            assert texts == []
        assert wait_until(lambda: bool(texts))
        time.sleep(1.5 * SILENT_SECONDS)  # of nothing that is not sent there is a sign
        assert texts == [f"[critical] reconciler-silent: {TEAM}"]
