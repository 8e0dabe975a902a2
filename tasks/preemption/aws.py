"""Notices of AWS, from the instance metadata service (IMDSv2) of a Spot instance.

Invariant: only an interruption ends the machine; a rebalance recommendation means that one has become more likely.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html says of the former that it
comes two minutes before the instance is stopped or terminated, and that hibernation begins at once.
"""

import os
from datetime import UTC, datetime
from http import HTTPStatus

from pydantic import AwareDatetime, BaseModel, Field

from tasks.preemption.metadata import MetadataService, text_of
from tasks.preemption.notice import Notice
from tasks.text import shortened

ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
ENDPOINT = "http://169.254.169.254"
TOKEN_PATH = "/latest/api/token"
ACTION_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
TOKEN_SECONDS = 21_600  # the most that the service grants


class _InstanceAction(BaseModel):
    action: str
    time: AwareDatetime


class _Rebalance(BaseModel):
    notice_time: AwareDatetime = Field(alias="noticeTime")


class AwsNotices:
    """A session's token is kept until the service does not take it any more."""

    name = "AWS's instance metadata service"
    least_seconds: float | None = 120.0

    def __init__(self) -> None:
        endpoint = os.environ.get(ENDPOINT_VARIABLE) or ENDPOINT
        self._service = MetadataService(endpoint, {})
        self._token: str | None = None

    def look(self) -> Notice | None:
        text = self._find(ACTION_PATH)
        if text is not None:
            return _describe_action(_InstanceAction.model_validate_json(text))
        text = self._find(REBALANCE_PATH)
        return None if text is None else _describe_rebalance(_Rebalance.model_validate_json(text))

    def _find(self, path: str) -> str | None:
        """What is at this path of the metadata; None if nothing is. A token that is over is renewed once."""
        answer = self._service.ask(path, self._headers())
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            self._token = None
            answer = self._service.ask(path, self._headers())
        return None if answer.status_code == HTTPStatus.NOT_FOUND else text_of(answer)

    def _headers(self) -> dict[str, str]:
        if self._token is None:
            asked = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
            self._token = text_of(self._service.ask(TOKEN_PATH, asked, method="PUT"))
        return {"X-aws-ec2-metadata-token": self._token}


def _describe_action(found: _InstanceAction) -> Notice:
    left = (found.time - datetime.now(UTC)).total_seconds()
    what = f"{shortened(found.action, 40)} at {found.time:%Y-%m-%d %H:%M:%S} UTC"
    return Notice(f"AWS announces for this Spot instance: {what}", max(0.0, left))


def _describe_rebalance(found: _Rebalance) -> Notice:
    words = (
        f"AWS recommended at {found.notice_time:%Y-%m-%d %H:%M:%S} UTC to move away from this Spot instance "
        "(rebalance recommendation): an interruption has become more likely, and none is announced yet"
    )
    return Notice(words, ends_machine=False)
