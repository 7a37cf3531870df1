"""Call a module on batches: for its outputs, and for losses that it computes itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.errors import InputError, UserCodeError
from hpcbal.training.outputs import by_name, named_outputs
from hpcbal.training.torch.inputs import AnyTensor, Tensors, each_of, mapped, version_of
from hpcbal.training.user_model import NUM_PROBES, user_errors


@dataclass(frozen=True, slots=True)
class LossBatch:
    """Samples of one rank for one step, as the method `loss` of a module gets them, on the module's device.

    Attributes:
        x: samples as `forward` gets them, shape (n, *sample shape), n >= 1; images have their channels first;
            a dict of all arrays if these have names.
        y: labels, shape (n, *label shape): int64 if they are whole numbers, else in the type of the weights;
            a dict if they have names.
        mask: true within a sample, bool, shape (n, *lengths of the axes that differ); None if none differ.
        lengths: number of true values of each sample's mask, int64, shape (n,); None without a mask.
    """

    x: AnyTensor
    y: AnyTensor
    mask: torch.Tensor | None = None
    lengths: torch.Tensor | None = None


def lengths_of(mask: torch.Tensor) -> torch.Tensor:
    """Number of real values of each sample, int64, shape (n,)."""
    return mask.reshape(len(mask), -1).sum(1)


def call(module: torch.nn.Module, takes: frozenset[str], x: AnyTensor, mask: torch.Tensor | None) -> Any:
    """Call a module on samples, with the mask of what is real, and lengths, if it takes them.

    Args:
        takes: names of the arguments besides samples without a name: of arrays, `mask`, `lengths`.
    """
    if isinstance(x, dict):
        return module(**{name: each for name, each in x.items() if name in takes})
    more: dict[str, torch.Tensor] = {}
    if mask is not None and "mask" in takes:
        more["mask"] = mask
    if mask is not None and "lengths" in takes:
        more["lengths"] = lengths_of(mask)
    return module(x, **more)


def own_losses(
    who: str, module: torch.nn.Module, x: AnyTensor, y: AnyTensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, Any]:
    """The losses that a module computes of samples, shape (n,), and its outputs for them if it returns both.

    Raises:
        InputError: if it returns anything but a loss for each sample, alone or in a pair with outputs.
    """
    loss: Callable[[LossBatch], Any] = module.loss  # type: ignore[assignment]
    found = loss(LossBatch(x, y, mask, None if mask is None else lengths_of(mask)))
    losses, outputs = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not torch.is_tensor(losses):
        raise InputError(
            f"{who}: loss(batch) returned a {type(losses).__name__}, allowed: a tensor with the loss of each "
            "sample, shape (n,), or a pair of it and the outputs"
        )
    if losses.ndim == 0:
        raise InputError(
            f"{who}: loss(batch) returned one number for a batch, allowed: the loss of each sample, shape "
            "(n,); leave out .mean(), or give losses of PyTorch reduction='none'"
        )
    number = len(each_of(x)[0])
    if losses.shape != (number,):
        raise InputError(
            f"{who}: loss(batch) returned shape {tuple(losses.shape)} for {number} samples, allowed: "
            f"({number},), the loss of each sample; take the mean over all other axes"
        )
    return losses, outputs


class ModuleCalls:
    """Calls the module of a replica, and names the user's line where its code raises.

    Attributes:
        has_loss: whether the module computes its losses itself.

    Args:
        dnn: for messages, and whether the module computes its losses.
        module: on the device.
        takes: arguments of its `forward` besides the samples.
        dtype: of what is returned.
        arithmetic: type of 16 bits in which layers compute; None: that of the weights.
        names: of the labels; none: a label without a name.
    """

    def __init__(
        self,
        dnn: DnnConfig,
        module: torch.nn.Module,
        takes: frozenset[str],
        dtype: torch.dtype,
        arithmetic: torch.dtype | None,
        names: Sequence[str] = (),
    ) -> None:
        self._names = tuple(names)
        self.has_loss = dnn.has_own_loss
        self._dnn, self._module, self._takes = dnn, module, takes
        self._dtype, self._arithmetic = dtype, arithmetic
        self._mark: Callable[..., None] | None = None
        if dnn.compile:  # the room of the compiler takes a second to load
            from hpcbal.training.torch.compiling import compile_module, mark_sizes

            compile_module(dnn, module)
            self._mark = mark_sizes

    def outputs(self, tensors: Tensors, doing: str) -> AnyTensor:
        """The outputs of the module, by name if labels have names.

        Args:
            tensors: a batch.
            doing: what is done, for messages.
        """
        found = self._guarded(
            tensors, doing, lambda: call(self._module, self._takes, tensors.x, tensors.mask)
        )
        return self._named(found)

    def _named(self, returned: Any) -> AnyTensor:
        who = f"DNN {self._dnn.name}: model {self._dnn.model}"
        return mapped(lambda each: each.to(self._dtype), named_outputs(who, returned, self._names))

    def losses(self, tensors: Tensors, doing: str) -> tuple[torch.Tensor, AnyTensor | None]:
        """The losses that the module computes, shape (n,), and its outputs if it returns them, too."""
        who = f"DNN {self._dnn.name}: model {self._dnn.model}"
        losses, outputs = self._guarded(
            tensors, doing, lambda: own_losses(who, self._module, tensors.x, tensors.labels, tensors.mask)
        )
        return losses.to(self._dtype), None if outputs is None else self._named(outputs)

    def _guarded(self, tensors: Tensors, doing: str, run: Callable[[], Any]) -> Any:
        """Run a user's code, in 16 bits if wanted; it must leave samples in shared memory as they are."""
        if self._mark is not None:
            self._mark(*each_of(tensors.x), *tensors.y.values(), tensors.mask)
        version, of_labels = version_of(tensors.x), version_of(tensors.y)
        with _hint_at_one_sample(len(each_of(tensors.x)[0])), user_errors(self._dnn, doing):
            if self._arithmetic is None:
                found = run()
            else:
                with torch.autocast(each_of(tensors.x)[0].device.type, self._arithmetic):
                    found = run()
            if tensors.is_shared and version_of(tensors.x) != version:
                raise RuntimeError(
                    "the module changed its samples in place, which other DNNs read too; use x = x * 2 for "
                    "x *= 2"
                )
            if version_of(tensors.y) != of_labels:
                raise RuntimeError(
                    "the module changed labels in place, which other DNNs read too; use y = y.clamp(0) for "
                    "y.clamp_(0)"
                )
        return found


@contextlib.contextmanager
def _hint_at_one_sample(number: int) -> Iterator[None]:
    """Say why batch normalisation has only one value, and what to do, if there is one sample."""
    try:
        yield
    except UserCodeError as error:
        if number != 1 or "more than 1 value per channel" not in str(error):
            raise
        raise UserCodeError(
            f"{error}. This share of a step has one sample, which batch normalisation cannot train; choose a "
            "batch_size (and accumulate) that leaves two or more for each slot, also in the last step of an "
            "epoch, or use SyncBatchNorm"
        ) from error


def check_own_loss(
    dnn: DnnConfig,
    module: torch.nn.Module,
    x: AnyTensor,
    y: AnyTensor,
    mask: torch.Tensor | None,
    outputs: AnyTensor,
) -> None:
    """Try the loss that a module computes itself on a few samples, in inference.

    Args:
        x, y, mask: the samples, as `LossBatch` holds them.
        outputs: what `forward` returns for them.

    Raises:
        InputError: if there is no method `loss`, or it does not return a finite number for each sample that
            depends on this sample alone. Losses that are random are not compared with those of parts.
        UserCodeError: if it raises.
    """
    who = f"DNN {dnn.name}: model {dnn.model}"
    method = getattr(module, "loss", None)
    if not callable(method) or isinstance(method, torch.nn.Module):
        is_loss = isinstance(method, torch.nn.Module)
        what = f", its loss is a {type(method).__name__}" if is_loss else ""
        raise InputError(
            f"{who} has no method loss{what}, which 'loss: module' needs; add def loss(self, batch) that "
            "returns the loss of each sample, shape (n,), of batch.x and batch.y"
        )
    version, of_labels, number = version_of(x), version_of(y), len(each_of(x)[0])
    module.eval()

    def of(start: int, stop: int, seed: int) -> tuple[torch.Tensor, Any]:
        torch.manual_seed(seed)
        part = None if mask is None else mask[start:stop]
        samples, labels = (mapped(lambda each: each[start:stop], given) for given in (x, y))
        return own_losses(who, module, samples, labels, part)

    state = torch.random.get_rng_state()
    try:
        with user_errors(dnn, f"computing its loss of {NUM_PROBES} samples"), torch.no_grad():
            losses, returned = of(0, number, 0)
            is_random = not torch.equal(losses, of(0, number, 1)[0])
            parts = torch.cat([of(i, i + 1, 0)[0] for i in range(number)])
    finally:
        torch.random.set_rng_state(state)
    check_unchanged(who, x, version)
    if version_of(y) != of_labels:
        raise InputError(
            f"{who}: loss(batch) changes labels in place, allowed: leave them, because other DNNs read the "
            "same memory; use y = batch.y.clamp(0) for batch.y.clamp_(0)"
        )
    if not torch.isfinite(losses).all():
        raise InputError(
            f"{who}: loss(batch) returns NaN or infinity for samples of zeros and ones, allowed: numbers"
        )
    if not is_random and not torch.allclose(losses, parts, rtol=1e-3, atol=1e-5):
        raise InputError(
            f"{who}: loss(batch): the loss of a sample depends on the other samples of the batch, allowed: a "
            "loss for each sample by itself, because the samples of a step lie on several ranks"
        )
    if returned is None:
        return
    names = list(outputs) if isinstance(outputs, dict) else []
    found = by_name(named_outputs(f"{who}: loss(batch)", returned, names))
    for name, expected in by_name(outputs).items():
        own = found[name]
        if not torch.is_tensor(own) or own.shape != expected.shape:
            got = f"shape {tuple(own.shape)}" if torch.is_tensor(own) else type(own).__name__
            raise InputError(
                f"{who}: loss(batch) returned losses and outputs of {got}, allowed: those of forward, shape "
                f"{tuple(expected.shape)}, or the losses alone"
            )


def check_unchanged(who: str, samples: AnyTensor, version: int) -> None:
    """Refuse a module that has changed its samples in place since they had this version.

    Raises: InputError: if it has.
    """
    if version_of(samples) != version:
        raise InputError(
            f"{who} changes its samples in place, allowed: leave them, because other DNNs read the same "
            "memory; use x = x * 2 for x *= 2, and no inplace=True in the first layer"
        )
