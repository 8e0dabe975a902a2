"""What a rank meets whose connection to another one is gone. Loads no torch."""

# In what Gloo says of it.
GLOO_LOST = ("gloo/transport/tcp/", "Connection reset by peer", "Connection closed by peer")


def is_lost_peer(error: BaseException) -> bool:
    """Whether this is it."""
    return isinstance(error, RuntimeError) and any(part in str(error) for part in GLOO_LOST)
