"""What tracking needs before a run begins. Nothing is asked over the network: a server that is away is no mistake.

Invariant: raises before anything was done, or not at all.
"""

import os
from importlib.util import find_spec

from storage.errors import ConfigurationError
from tasks.configuration.tracking import TrackingConfig, require_server_address

URI_VARIABLE, TOKEN_VARIABLE = "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN"


def require_tracking(config: TrackingConfig) -> None:
    """Raise `ConfigurationError` where no server is named, or a package is missing."""
    if config.kind == "mlflow":
        server_address(config)
        _require_token()
    if "tensorboard" in config.files and find_spec("tensorboard") is None:
        raise ConfigurationError(
            'tracking.files has "tensorboard", and the package tensorboard is not installed. Install it: '
            "pip install 'holdfast[tensorboard]'; or take it out of tracking.files."
        )


def _require_token() -> None:
    """The token itself is never shown."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not (token.isascii() and token.isprintable()):
        raise ConfigurationError(
            f"{TOKEN_VARIABLE} has characters that no request may have in its header, such as the end of a line. "
            "Set it to the token alone."
        )


def server_address(config: TrackingConfig) -> str:
    """Of the MLflow server, without a slash at its end. Raises `ConfigurationError`."""
    # As MLflow's own clients find it.
    uri = config.uri or os.environ.get(URI_VARIABLE)
    if not uri:
        raise ConfigurationError(
            "tracking.kind is 'mlflow', and no server is named. Set tracking.uri to its address, such as "
            f"http://mlflow:5000, or the environment variable {URI_VARIABLE}."
        )
    try:
        require_server_address(uri)
    except ValueError as error:
        raise ConfigurationError(f"{'tracking.uri' if config.uri else URI_VARIABLE}: {error}.") from error
    return uri.rstrip("/")
