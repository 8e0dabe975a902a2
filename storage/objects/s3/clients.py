"""boto3's clients for a store or source, as its ordinary chain of environment, profile and roles describes them."""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import botocore.session
from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from storage.errors import ConfigurationError
from storage.objects.s3.address import S3Address, without_secrets
from storage.objects.s3.errors import CREDENTIAL_ERRORS, explain
from storage.objects.s3.parts import Parts

DEFAULT_ATTEMPTS = 6
CONNECT_TIMEOUT_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 60.0
MAX_CONNECTIONS = 32


@dataclass(frozen=True, eq=False)
class Clients:
    """What requests are sent with: how often each is tried, and whether the server is to check bodies by MD5."""

    client: Any
    parts: Parts
    attempts: int
    sends_md5: bool
    session: botocore.session.Session

    def are_outdated(self) -> bool:
        """Whether boto3 would sign with another key if these were made now: it reads files and environment once."""
        found = _find_key(botocore.session.Session())
        return found is not None and found != _find_key(self.session)


def make_clients(address: S3Address) -> Clients:
    """Clients as the environment and the profile describe them at this moment; nothing is sent yet.

    Raises `ConfigurationError` if they make no sense.
    """
    try:
        session = botocore.session.Session()
        session.register_component("data_loader", _api_descriptions())
        profile = session.get_scoped_config()
        config = Config(
            retries={"total_max_attempts": 1},
            connect_timeout=float(profile.get("connect_timeout", CONNECT_TIMEOUT_SECONDS)),
            read_timeout=float(profile.get("read_timeout", READ_TIMEOUT_SECONDS)),
            max_pool_connections=MAX_CONNECTIONS,
        )
        attempts = session.get_config_variable("max_attempts") or DEFAULT_ATTEMPTS
        make_client = partial(Session(botocore_session=session).client, "s3")
        # By default boto3 signs addresses in a way that AWS has given up.
        signer = make_client(config=config.merge(Config(signature_version="s3v4")))
        client, parts = make_client(config=config), Parts(signer, session.get_config_variable("ca_bundle"))
    except CREDENTIAL_ERRORS as error:
        raise explain(error, address, "", "its endpoint") from None
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(
            f"{address.setting} = '{address}': boto3 cannot be set up from the environment and the profile: "
            f"{without_secrets(str(error))} Check the variables that begin with AWS_, and the files in ~/.aws."
        ) from error
    sends_md5 = client.meta.config.request_checksum_calculation == "when_required"
    return Clients(client, parts, attempts, sends_md5, session)


def _find_key(session: botocore.session.Session) -> tuple[str | None, ...] | None:
    """The key's id, its secret and a session's token. Of a role, this may ask whoever gives keys out."""
    credentials = session.get_credentials()
    return tuple(credentials.get_frozen_credentials()) if credentials else None


@lru_cache(maxsize=1)
def _api_descriptions() -> Any:
    """What boto3 knows of S3, in JSON. Reading it takes nine tenths of the time in which a store is opened."""
    return botocore.session.Session().get_component("data_loader")
