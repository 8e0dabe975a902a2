"""Which sources a configuration names. A further one goes here, and into `Cloud` if it is a cloud."""

from collections.abc import Callable
from pathlib import Path

from tasks.configuration.notices import Cloud, NoticesConfig
from tasks.preemption.aws import AwsNotices
from tasks.preemption.azure import ENDPOINT, AzureNotices
from tasks.preemption.file import NoticeFile
from tasks.preemption.gcp import GcpNotices
from tasks.preemption.notice import NoticeSource

CLOUDS: dict[Cloud, Callable[[NoticesConfig], NoticeSource]] = {
    "aws": lambda _config: AwsNotices(),
    "gcp": lambda _config: GcpNotices(),
    "azure": lambda config: AzureNotices(config.azure_endpoint or ENDPOINT),
}


def open_sources(config: NoticesConfig) -> list[NoticeSource]:
    """One of each kind that is named. None is asked yet."""
    sources: list[NoticeSource] = [CLOUDS[cloud](config) for cloud in dict.fromkeys(config.clouds)]
    return sources if config.file is None else [*sources, NoticeFile(Path(config.file))]
