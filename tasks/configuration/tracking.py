"""Where the figures of a run go beside its own store.

Invariant: nothing here decides anything about the model: all of it may change between segments.
"""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from training.configuration import ConfigModel


class TrackingConfig(ConfigModel):
    """Experiment tracking: an MLflow server that gets a run's figures, and files with them beside the run.

    A server that does not answer never stops nor slows training; what it missed is sent later.
    """

    kind: Literal["none", "mlflow"] = Field(
        "none", description="mlflow: figures are sent to an MLflow server, over HTTP."
    )
    uri: str | None = Field(
        None,
        description="Address of the MLflow server, such as http://mlflow:5000. Default: what the environment variable "
        "MLFLOW_TRACKING_URI says where the flow runs. A user name and a password, or a token, are taken from "
        "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, and never stand here.",
    )
    experiment: str = Field(
        "holdfast", min_length=1, description="MLflow's experiment, which is made if it is not there."
    )
    run_name: str | None = Field(
        None, min_length=1, description="Name of the run in MLflow. Default: the run's own name."
    )
    timeout_seconds: float = Field(
        10, gt=0, le=120, description="Seconds after which a request to the server that was not answered is given up."
    )
    files: list[Literal["csv", "tensorboard"]] = Field(
        [],
        description="Files in the store beside the run. csv: metrics.csv, a row for each step that has a figure. "
        "tensorboard: event files in the folder tensorboard; needs the package tensorboard.",
    )

    @property
    def is_on(self) -> bool:
        """Whether there is anything to do."""
        return self.kind != "none" or bool(self.files)

    @field_validator("uri")
    @classmethod
    def _is_an_address(cls, uri: str | None) -> str | None:
        if uri is not None:
            require_server_address(uri)
        return uri

    @model_validator(mode="after")
    def _uri_goes_with_a_server(self) -> "TrackingConfig":
        if self.uri is not None and self.kind == "none":
            raise ValueError(f"uri goes with kind = 'mlflow': {self.describe('kind')}. Set that, or take uri out")
        return self


def require_server_address(uri: str) -> None:
    """Raise `ValueError` unless `uri` names a server that is asked over HTTP, and no password."""
    parts = urlsplit(uri)
    try:
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"the address of an MLflow server has no such port: {error}. Correct it") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        found = f"{parts.scheme}:..." if parts.scheme else repr(uri)
        raise ValueError(
            f"the address of an MLflow server begins with http:// or https:// and has a host, found {found}. Start one "
            "with `mlflow server`, and give its address"
        )
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "the address of the MLflow server must have no user name and no password in it: the configuration is kept "
            "in the store. Put them into MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
        )
