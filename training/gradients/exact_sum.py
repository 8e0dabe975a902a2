"""The exact sum of the microbatches' gradients over microbatches and ranks: integers in one buffer, added to in place.

When backward has made the gradients of a bucket of parameters, they are rounded and added to the bucket's part of the
buffer; with a rank's last microbatch that part travels while backward goes on. What ranks have to say of their
microbatches travels with the last bucket, and costs no message of its own. Invariant: from the rounding on there
are integers only, and each microbatch is rounded by itself, so neither the number of ranks, nor the order of
microbatches, nor which microbatch uses which parameter, nor the algorithm of the all-reduce reaches a bit of the
result. With a bucket travels its linear hash, so each rank knows whether what it received is the sum of what all sent;
and with the last one a hash of each rank's weights, so all know whether they computed gradients of the same weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
import torch.distributed as dist
from torch import Tensor, nn

from storage.errors import ConfigurationError
from training.collectives import GREATEST, all_reduce, begin_all_reduce, broadcast
from training.gradients.cpu_pass import BLOCK_VALUES
from training.gradients.fixed_point import NUM_TALLIES, OUTSIDE, FixedPoint
from training.linear_hash import hash_of_bits, linear_hash
from training.optim.optimization import Optimization
from training.rank_status import Collective
from training.world import World

# Gradients of at least so many values are added, and travel, at once: 32 MiB of integers.
BUCKET_VALUES = 1 << 22
# A bucket's values are filled up with zeros to a multiple of this, and begin at one: a GPU's kernels move 16 bytes at a
# time, and a CPU looks for zeros in blocks of so many.
ALIGNED_VALUES = BLOCK_VALUES
# At a bucket's end: the tallies, and its hash.
NUM_BEHIND = NUM_TALLIES + 1


class _Bucket:
    """Neighbouring parameters, and in `words` int64 what their gradients add up to, tallies and a hash at the end.

    Before these, in the last bucket, are the hashes of the ranks' weights, and the receipts.
    """

    def __init__(self, parameters: list[nn.Parameter], words: Tensor) -> None:
        self.parameters = parameters
        self.words = words
        num_values = sum(parameter.numel() for parameter in parameters)
        self.total, self.tallies, self._hash = words[: _aligned(num_values)], words[-NUM_BEHIND:-1], words[-1:]
        self._fill = torch.zeros(len(self.total) - num_values, device=words.device)
        self.num_waiting = len(parameters)
        self.is_empty = True
        self._taken: list[Tensor | None] = []

    def empty(self) -> None:
        """Forget what was added: what is in `total` is then replaced, not read."""
        self.is_empty = True
        self.tallies.zero_()

    def take_gradients(self, scratch: Tensor) -> Tensor:
        """The gradients of one microbatch, flat, in `scratch`: taken from the parameters, which have none then.

        A parameter that the microbatch did not use has the gradient zero.
        """
        self.num_waiting = 0
        self._taken = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        pairs = zip(self.parameters, self._taken, strict=True)
        flat = [p.new_zeros(p.numel()) if gradient is None else gradient.reshape(-1) for p, gradient in pairs]
        return torch.cat([*flat, self._fill], out=scratch[: len(self.total)])

    def hash_weights(self, scratch: Tensor) -> Tensor:
        """The hash of the parameters' values: int64 [], on the device. They are put into `scratch`."""
        flat = [parameter.detach().reshape(-1) for parameter in self.parameters]
        return hash_of_bits(torch.cat([*flat, self._fill], out=scratch[: len(self.total)]))

    def seal(self) -> None:
        """Put the hash of all that is sent behind it."""
        self._hash.zero_()
        self._hash.copy_(linear_hash(self.words))

    def is_wrong(self) -> Tensor:
        """Whether what was received is not the sum of what all ranks sent: bool [1], on the device."""
        sent = self._hash.clone()
        self._hash.zero_()
        return linear_hash(self.words) != sent

    def give_gradients(self) -> list[Tensor]:
        """A gradient for each parameter, of any values: those that were taken last, where there are such."""
        for parameter, gradient in zip(self.parameters, self._taken, strict=True):
            parameter.grad = torch.empty_like(parameter) if gradient is None else gradient
        self._taken = []
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]


class ExactSum:
    """Sums the gradients of a step's microbatches over microbatches and ranks; `parallel` is the model to call.

    `receipts` int64 [`num_receipts`] are summed with them: what this rank has to say of its microbatches, which stands
    there before backward of the last one begins; afterwards what all ranks said.
    """

    # Nothing is divided by the number of ranks here, so nothing has to make up for it.
    loss_factor = 1.0
    # Whether this rank received another sum in this step than the ranks had sent. Nothing may come of that step.
    is_wrong = False
    # Whether the ranks, as all of them know, did not have the same weights when they had computed its gradients.
    is_unequal = False
    # Whether the step's gradient is not finite, on all ranks alike; with a gradient scaler that is its business.
    is_not_finite = False

    def __init__(
        self,
        model: nn.Module,
        num_microbatches: int,
        optimization: Optimization,
        world: World,
        num_receipts: int = 0,
    ) -> None:
        self.parallel = model
        self._usual = self._fixed_point = FixedPoint(num_microbatches)
        self._optimization = optimization
        self._world = world
        self._names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        # Each rank has a microbatch, so there are no more ranks than that.
        self._words, self._buckets = _make_buckets(list(self._names), num_microbatches + num_receipts)
        last = self._buckets[-1]
        more = last.words[len(last.total) :]
        self._hashes, self.receipts = more[:num_microbatches], more[num_microbatches:][:num_receipts]
        self.hashes: list[int] = []  # of each rank's weights in the step, by rank
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.parameters}
        largest_bucket = max(len(bucket.total) for bucket in self._buckets)
        self._scratch = torch.empty(largest_bucket, device=self._words.device)
        self._largest = torch.zeros((), device=self._words.device)
        self._num_wrong = torch.zeros(1, dtype=torch.int64, device=self._words.device)
        self._under_way: list[dist.Work] = []
        # What this rank computes itself, on a GPU: when that is done the CPU waits for nothing but the other ranks.
        self._own_part = torch.cuda.Event() if self._words.is_cuda else None  # type: ignore[no-untyped-call]
        self._num_sent, self._sends, self._loss_scale = 0, True, 1.0
        _make_equal(model, world)
        for parameter in self._names:
            parameter.register_post_accumulate_grad_hook(self._keep)  # type: ignore[no-untyped-call]

    def attempts(self) -> Iterator[None]:
        """Compute all microbatches of a step for each value: once, and again if a gradient was outside the usual range.

        The wider range follows from the largest value of all microbatches, so it is the same on any number of ranks. A
        gradient that is not finite is not tried again. Makes the CPU wait for the GPU, as a gradient scaler does. A
        collective when a step is tried again.
        """
        self.is_not_finite = False
        self._begin(self._usual)
        yield
        if self._own_part is not None:
            self._own_part.synchronize()
        if not self._is_outside() or self.is_unequal:
            return
        wider = self._usual.widened(self._find_largest(), self._loss_scale)
        self.is_not_finite = wider is None and not self._optimization.scaler.is_enabled()
        if wider is not None:
            self._begin(wider)
            yield
            self._is_outside()

    @contextmanager
    def microbatch(self, is_last: bool) -> Iterator[None]:
        """Context of forward and backward of one of this rank's microbatches; the sums travel with the last one."""
        self._sends, self._loss_scale = is_last, self._optimization.loss_scale
        for bucket in self._buckets:
            bucket.num_waiting = len(bucket.parameters)
        yield
        for bucket in self._buckets:
            if bucket.num_waiting:  # for a parameter that this microbatch does not use
                self._add(bucket)
        if is_last:
            self._receive()

    def take_tallies(self, _norm: Tensor) -> Tensor:
        """Terms outside the range, and values that rounded to zero, of the step: int64 [2], the same on every rank.

        In fp16 overflow is the gradient scaler's business: it sees the NaN and skips the step. Of a wrong sum it is not
        told either: for that the ranks end at this boundary.
        """
        tallies = self._tallies()
        if self._optimization.scaler.is_enabled() or self.is_wrong:
            tallies[OUTSIDE] = 0
        return tallies

    def abandon(self) -> None:
        """Forget a step that cannot be ended, once nothing of it is received any more. Connections are shut down."""
        for work in self._under_way:
            with suppress(RuntimeError):
                work.wait()
        self._under_way.clear()
        if self._words.is_cuda:  # copies from and to the buffer are on streams of their own
            torch.cuda.synchronize(self._words.device)

    def _begin(self, fixed_point: FixedPoint) -> None:
        self._fixed_point = fixed_point
        for bucket in self._buckets:
            bucket.empty()
        self._hashes.zero_()
        self.receipts.zero_()
        self._largest.zero_()
        self._num_wrong.zero_()
        self._num_sent = 0
        for parameter in self._names:
            parameter.grad = None

    def _is_outside(self) -> bool:
        """Whether a gradient was outside the range, as far as that is known: of a wrong sum it is not.

        Nor is it whether all had the same weights: what a rank received wrongly says nothing of the others.
        """
        hashes = self._hashes[: self._world.size]
        read = torch.cat([self._tallies()[OUTSIDE : OUTSIDE + 1], self._num_wrong, hashes])
        with self._world.rank_status.waiting_for_ranks(Collective.GRADIENTS):
            num_outside, num_wrong, *self.hashes = read.tolist()
        self.is_wrong = num_wrong > 0
        self.is_unequal = len(set(self.hashes)) > 1 and not self.is_wrong
        return num_outside > 0 and not self.is_wrong

    def _tallies(self) -> Tensor:
        return torch.stack([bucket.tallies for bucket in self._buckets]).sum(dim=0)

    def _find_largest(self) -> float:
        """The largest magnitude in any microbatch's gradient, infinity if one is not finite. A collective."""
        largest = self._largest.nan_to_num(nan=torch.inf, posinf=torch.inf)
        all_reduce(largest, self._world, Collective.LARGEST_GRADIENT, GREATEST)
        return largest.item()

    def _keep(self, parameter: Tensor) -> None:
        """Hook of a parameter whose gradient of a microbatch is complete."""
        bucket = self._bucket_of[parameter]  # type: ignore[index]
        if bucket.num_waiting == 0:
            raise _computed_in_parts(self._names[parameter])  # type: ignore[index]
        bucket.num_waiting -= 1
        if bucket.num_waiting == 0:
            self._add(bucket)

    def _add(self, bucket: _Bucket) -> None:
        """Add a microbatch's gradients to what the bucket holds; with the last one all due buckets are sent."""
        gradients = bucket.take_gradients(self._scratch)
        self._fixed_point.add_to(
            bucket.total, gradients, bucket.tallies, self._largest, self._loss_scale, bucket.is_empty
        )
        bucket.is_empty = False
        while self._sends and self._num_sent < len(self._buckets) and not self._buckets[self._num_sent].num_waiting:
            self._send(self._buckets[self._num_sent])

    def _send(self, bucket: _Bucket) -> None:
        """Begin to add up a bucket over ranks. All ranks send the buckets in the same order."""
        self._num_sent += 1
        self._fixed_point.count_outside(bucket.tallies, self._largest, self._loss_scale)
        if self._world.size > 1:
            if bucket is self._buckets[-1]:  # no gradient is computed any more, and the optimizer has not begun
                hashes = torch.stack([bucket.hash_weights(self._scratch) for bucket in self._buckets])
                self._hashes[self._world.rank] = linear_hash(hashes)
            bucket.seal()
        self._under_way += begin_all_reduce(bucket.words, self._world)

    def _receive(self) -> None:
        """Wait for the sums, and make them the parameters' gradients."""
        if self._own_part is not None:
            self._own_part.record()
        with self._world.rank_status.waiting_for_ranks(Collective.GRADIENTS):
            for work in self._under_way:
                work.wait()  # on a GPU the stream waits, not the CPU
        self._under_way.clear()
        for bucket in self._buckets:
            if self._world.size > 1:
                self._num_wrong += bucket.is_wrong()
            self._fixed_point.read(bucket.total, bucket.tallies, bucket.give_gradients(), self._loss_scale)


def _make_buckets(parameters: list[nn.Parameter], num_more: int) -> tuple[Tensor, list[_Bucket]]:
    """One buffer, and buckets in it in the order in which backward reaches them, about from the last parameter on.

    The last one has room for so many words more.
    """
    groups: list[list[nn.Parameter]] = [[]]
    for parameter in reversed(parameters):
        if sum(p.numel() for p in groups[-1]) >= BUCKET_VALUES:
            groups.append([])
        groups[-1].append(parameter)
    behind = [NUM_BEHIND] * (len(groups) - 1) + [NUM_BEHIND + num_more]
    sizes = [
        _aligned(_aligned(sum(p.numel() for p in group)) + num_words)
        for group, num_words in zip(groups, behind, strict=True)
    ]
    words = torch.zeros(sum(sizes), dtype=torch.int64, device=parameters[0].device)
    return words, [_Bucket(group, part) for group, part in zip(groups, torch.split(words, sizes), strict=True)]


def _aligned(num_values: int) -> int:
    return -(-num_values // ALIGNED_VALUES) * ALIGNED_VALUES


def _make_equal(model: nn.Module, world: World) -> None:
    """Give all ranks the first one's weights: another kind of processor may draw others from the same seed."""
    for tensor in model.state_dict().values():
        broadcast(tensor.detach(), 0, world, Collective.WEIGHTS)


def _computed_in_parts(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"The gradient of the model's parameter {name!r} was computed in several parts within one backward pass, as "
        "reentrant activation checkpointing does. The exact sum needs it in one part: use checkpointing with "
        "use_reentrant=False, or set train.sum = 'fast'."
    )
