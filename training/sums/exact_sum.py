"""The exact sum of the leaves' gradients, behind DistributedDataParallel's public hooks.

A rank's leaves but the last are taken from the parameters as soon as backward has made them, group by group; the last
one comes bucket by bucket through DDP's communication hook, is added, and travels as integers while backward goes on.
Invariant: from the first rounding on there are integers only, so neither the number of ranks, nor the order of leaves,
nor how DDP cuts its buckets, nor the algorithm of the all-reduce reaches a bit of the result.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from training.optimization import Optimization
from training.sums.fixed_point import NUM_TALLIES, FixedPoint

# Gradients of so many values are added at once: enough to keep a GPU busy, little beside the model.
GROUP_VALUES = 1 << 22


class _Group:
    """Neighbouring parameters whose gradients are added together, and what their leaves add up to so far."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.num_waiting = len(parameters)
        device = parameters[0].device
        self.total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.int64, device=device)
        self.tallies = torch.zeros(NUM_TALLIES, dtype=torch.int64, device=device)

    def totals(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each parameter with its part of the total."""
        sizes = [parameter.numel() for parameter in self.parameters]
        return zip(self.parameters, torch.split(self.total, sizes), strict=True)


class ExactSum:
    """Sums the gradients of a step's leaves over leaves and ranks; `parallel` is the model to call."""

    # DDP adds nothing here, so nothing has to make up for its dividing by the number of ranks.
    loss_factor = 1.0

    def __init__(
        self, model: nn.Module, num_leaves: int, optimization: Optimization, device_ids: list[int] | None
    ) -> None:
        # Gradients are not views of DDP's buckets: where a gradient begins in memory would change when buckets are
        # regrouped after a process's first step, and on GPUs the order in which a norm is added up changes with it.
        self.parallel = DistributedDataParallel(model, device_ids=device_ids, gradient_as_bucket_view=False)
        self._fixed_point = FixedPoint(num_leaves)
        self._optimization = optimization
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._groups: list[_Group] = []
        self._group_of: dict[nn.Parameter, _Group] = {}
        self._total_of: dict[nn.Parameter, Tensor] = {}
        self._tallies: list[Tensor] = []
        self._sends, self._loss_scale = True, 1.0
        self.parallel.register_comm_hook(None, self._send)
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._keep)  # type: ignore[no-untyped-call]

    @contextmanager
    def leaf(self, is_last: bool) -> Iterator[None]:
        """Around forward and backward of one of this rank's leaves; the sums travel with the last one."""
        self._sends, self._loss_scale = is_last, self._optimization.loss_scale
        if not is_last and not self._groups:
            self._make_groups()
        with nullcontext() if is_last else self.parallel.no_sync():
            yield
        if is_last:
            self._forget()

    def take_tallies(self) -> Tensor:
        """Terms outside the range, and values that rounded to zero, of the step: int64 [2], the same on every rank.

        In fp16 overflow is the gradient scaler's business: it sees the NaN and skips the step.
        """
        tallies = torch.stack(self._tallies).sum(dim=0)
        self._tallies.clear()
        if self._optimization.scaler.is_enabled():
            tallies[0] = 0
        return tallies

    def _make_groups(self) -> None:
        """Groups of parameters in the order in which backward reaches them, about from the last to the first."""
        waiting: list[nn.Parameter] = []
        for parameter in reversed(self._parameters):
            waiting.append(parameter)
            if sum(p.numel() for p in waiting) >= GROUP_VALUES:
                self._groups.append(_Group(waiting))
                waiting = []
        if waiting:
            self._groups.append(_Group(waiting))
        self._group_of = {parameter: group for group in self._groups for parameter in group.parameters}
        self._total_of = {parameter: total for group in self._groups for parameter, total in group.totals()}

    def _keep(self, parameter: Tensor) -> None:
        """Hook of a parameter whose gradient of a leaf is complete."""
        if self._sends:
            return
        group = self._group_of[parameter]  # type: ignore[index]
        group.num_waiting -= 1
        if group.num_waiting == 0:
            group.num_waiting = len(group.parameters)
            gradients = torch.cat([_taken_gradient(member) for member in group.parameters])
            self._fixed_point.add_to(group.total, gradients, group.tallies, self._loss_scale)

    def _send(self, _state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        """Hook of a bucket that holds this rank's last leaf: add what was kept, and sum over ranks."""
        gradients: Tensor = bucket.buffer()
        words = self._words(bucket)
        total, tallies = words[:-NUM_TALLIES], words[-NUM_TALLIES:]
        self._fixed_point.add_to(total, gradients, tallies, self._loss_scale)

        def read(_done: torch.futures.Future[list[Tensor]]) -> Tensor:
            self._fixed_point.read(total, tallies, gradients, self._loss_scale)
            self._tallies.append(tallies.clone())
            return gradients

        work = dist.all_reduce(words, async_op=True)
        assert work is not None
        sent: torch.futures.Future[Tensor] = work.get_future().then(read)
        return sent

    def _words(self, bucket: dist.GradBucket) -> Tensor:  # type: ignore[name-defined]
        """What the bucket's parameters add up to so far, and behind it the tallies: int64 [N + 2]."""
        parameters, device = bucket.parameters(), bucket.buffer().device
        tallies = torch.zeros(NUM_TALLIES, dtype=torch.int64, device=device)
        if not self._groups:
            return torch.zeros(bucket.buffer().numel() + NUM_TALLIES, dtype=torch.int64, device=device)
        for group in self._groups:
            if any(group.parameters[0] is parameter for parameter in parameters):  # each group's tallies travel once
                tallies += group.tallies
        return torch.cat([*(self._total_of[parameter] for parameter in parameters), tallies])

    def _forget(self) -> None:
        for group in self._groups:
            group.total.zero_()
            group.tallies.zero_()


def _taken_gradient(parameter: nn.Parameter) -> Tensor:
    """The gradient, flat, taken from the parameter so that the next leaf begins with none."""
    gradient = parameter.grad
    assert gradient is not None
    parameter.grad = None
    return gradient.reshape(-1)
