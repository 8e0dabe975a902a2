"""Whose notices a segment looks for, beside the signals that always count.

Invariant: no service is asked that is not named here. 169.254.169.254 is a cloud's metadata service only within that
cloud; elsewhere it may be another machine's address, or one that firewalls report who asks.
"""

from typing import Literal

from pydantic import Field

from training.configuration import ConfigModel

Cloud = Literal["aws", "gcp", "azure"]


class NoticesConfig(ConfigModel):
    """Who is asked every 2 s, while ranks run, whether a machine is about to be taken away.

    The ranks then finish their step, save and leave. SIGTERM, Ctrl-C, SIGUSR1 and SIGUSR2 need no setting.
    """

    clouds: list[Cloud] = Field(
        [],
        description="Clouds whose metadata service is asked on the machine where the command runs, and on each node of "
        "a cluster's job: aws, gcp, azure. Default: none, since on a machine that is not in the cloud another machine "
        "may have the service's address.",
    )
    file: str | None = Field(
        None,
        min_length=1,
        description="A file that is the notice when it is there; its first line is quoted. While it is there no "
        "segment goes on. A relative path is taken from the configuration file's folder.",
    )
    azure_endpoint: str | None = Field(
        None,
        min_length=1,
        description="Address of Azure's metadata service, if it is another one than Azure's own. Those of AWS and GCP "
        "are taken from AWS_EC2_METADATA_SERVICE_ENDPOINT and GCE_METADATA_HOST, as their own libraries do.",
    )
