"""A model's buffers, which training must not change.

A buffer that a forward pass changes, as batch normalisation does, depends on which microbatches this rank computed and
in which order. Invariant: such a model is refused by the buffer's name, in the first forward pass that changes one.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from storage.errors import ConfigurationError


class Buffers:
    """The buffers of one model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names = [name for name, _ in model.named_buffers()]
        # Some operations change a tensor without counting it in its version, so at first values are compared too; not
        # always, since that makes the CPU wait for the GPU.
        self._compares_values = True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Context of what must not change a buffer. Raises `ConfigurationError`, naming one that was changed."""
        before = [(buffer, buffer._version) for buffer in self._buffers()]
        values = [buffer.clone() for buffer, _ in before] if self._compares_values else [b for b, _ in before]
        yield
        for name, (buffer, version), value, now in zip(self._names, before, values, self._buffers(), strict=True):
            if now is not buffer or now._version != version or not _is_equal(now, value):
                raise _changed(name)
        self._compares_values = False

    def _buffers(self) -> list[Tensor]:
        return [self._model.get_buffer(name) for name in self._names]


def _is_equal(now: Tensor, before: Tensor) -> bool:
    """NaN is equal to NaN."""
    return now is before or bool(((now == before) | (now != now) & (before != before)).all())


def _changed(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"The model's buffer {name!r} was changed by a forward pass in training, as batch normalisation does. Its "
        "value would depend on which samples a rank gets, and the run could not be resumed exactly. Use a layer "
        "without running statistics, such as LayerNorm or GroupNorm."
    )
