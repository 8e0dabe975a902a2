"""What a rank meets whose connection to another one is gone. Loads no torch."""

# In what Gloo says of it.
GLOO_LOST = ("gloo/transport/tcp/", "Connection reset by peer", "Connection closed by peer")


class LostPeerError(RuntimeError):
    """The ranks with which this one was to train are gone, or do not come."""


def is_lost_peer(error: BaseException) -> bool:
    """Whether this is it."""
    if isinstance(error, LostPeerError):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in GLOO_LOST)
