"""The loss and the metrics of a torch module: sums over samples that add up over ranks and steps."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.loss import _Loss

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.data.spec import LabelSpec
from hpcbal.errors import InputError
from hpcbal.training.metric import Metric
from hpcbal.training.objective import Objective, Probe, errors_of_user_code
from hpcbal.training.objective_library import LossFunction
from hpcbal.training.torch import metrics
from hpcbal.training.torch.losses import LOSSES
from hpcbal.training.torch.metric_states import (
    MeanOfSamples,
    TorchAccuracy,
    accuracy_of_whole_labels,
    array_of,
)
from hpcbal.training.weights import Array

_OUTPUTS_NAMES = frozenset(
    {"input", "inputs", "logit", "logits", "output", "outputs", "pred", "preds", "prediction", "predictions"}
    | {"y_hat", "y_pred", "yhat"}
)
_LABELS_NAMES = frozenset(
    {"ground_truth", "gt", "label", "labels", "target", "targets", "truth", "y", "y_true"}
)
_TAKE_CLASS_NUMBERS = frozenset(
    {"CrossEntropyLoss", "MultiLabelMarginLoss", "MultiMarginLoss", "NLLLoss", "NLLLoss2d"}
    | {"cross_entropy", "multi_margin_loss", "multilabel_margin_loss", "nll_loss"}
)
"""Losses of torch whose labels may be whole numbers; others need labels of the type of outputs."""


_WEIGHTS = frozenset({"pos_weight", "weight"})
"""Arguments of torch's losses that are tensors: in the configuration, lists of numbers."""


class TorchObjective(Objective):
    """Loss and metrics of one DNN, with functions of torch, on whatever device labels and outputs are.

    Labels that are whole numbers, such as those of classes, reach losses and metrics as int64, other labels
    and outputs in `dtype`.

    Args:
        dnn: its loss, metrics and weights of classes.
        label: shape and type of a label.
        num_classes: number of classes, if labels are classes.
        ending: activation at the end of the module; None if unknown (see `Objective`). A cross entropy of
            probabilities keeps them 1e-7 away from 0 and 1, so modules rather return logits.
        dtype: of the arithmetic of losses and metrics, `torch.float32` or `torch.float64`.
    """

    def __init__(
        self, dnn: DnnConfig, label: LabelSpec, num_classes: int, ending: str | None, dtype: torch.dtype
    ) -> None:
        self._dtype = dtype
        self._loss_by_path: str | None = None
        super().__init__(dnn, label, num_classes, ending)

    def try_on(self, probe: Probe) -> None:
        with torch.no_grad():
            outputs = self._outputs(torch.as_tensor(probe.outputs))
            labels = self._labels(probe.y).to(outputs.device)
            with self._unchanged(labels):
                super().try_on(Probe(labels, outputs))
                if self._loss_by_path is not None:
                    self._check_gradient(self._loss_by_path, labels, outputs)

    def states(self, y: Any, outputs: Any) -> list[Any]:
        labels = self._labels(y)
        with torch.no_grad(), self._unchanged(labels):
            return super().states(labels, self._outputs(outputs))

    def _loss_of_samples(self, y: Any, outputs: Any) -> Any:
        labels = self._labels(y)
        with self._unchanged(labels):
            return super()._loss_of_samples(labels, self._outputs(outputs))

    @contextlib.contextmanager
    def _unchanged(self, labels: Tensor) -> Iterator[None]:
        """Raise InputError if the block changes labels."""
        version = labels._version
        yield
        if labels._version != version:
            raise InputError(
                f"{self._who}: the loss or a metric changes labels in place, allowed: leave them, because "
                "other DNNs read the same memory; use y = y.clamp(0) for y.clamp_(0)"
            )

    def _check_gradient(self, name: str, labels: Tensor, outputs: Tensor) -> None:
        """Refuse a loss that outputs cannot lower: PyTorch would say so in the first step only."""
        with (
            torch.enable_grad(),
            errors_of_user_code(f"{self._who}: computing the loss of {len(labels)} samples"),
        ):
            losses = self._loss_of_samples(labels, outputs.clone().requires_grad_().clone())
        if not losses.requires_grad:
            raise InputError(
                f"{self._who}: loss {name}: it returns losses without a gradient, allowed: losses that "
                "depend on the outputs; remove detach(), torch.no_grad(), argmax or NumPy from its code"
            )

    def _labels(self, y: Any) -> Tensor:
        y = torch.as_tensor(y)
        return y.to(self._dtype if y.is_floating_point() else torch.int64)

    def _outputs(self, outputs: Tensor) -> Tensor:
        return outputs.to(self._dtype)

    def _cross_entropy(self, y: Any, logits: Any) -> Any:
        return functional.cross_entropy(logits, y, reduction="none", label_smoothing=self._smoothing)

    def _made_loss(self, kind: str, args: Mapping[str, Any]) -> LossFunction:
        function = LOSSES[kind]
        inspect.signature(function).bind(None, None, **args)
        return partial(function, **args)

    def _loss_of_module(self) -> LossFunction:
        """NaN: of outputs alone, as predictions that were kept are, there is no such loss."""
        return lambda y, outputs: torch.full((len(y),), torch.nan, dtype=self._dtype, device=outputs.device)

    def _own_loss(self, name: str, found: Any, args: Mapping[str, Any]) -> LossFunction:
        self._loss_by_path = name
        return self._per_sample("loss", name, found, args)

    def _accuracy_of_classes(self) -> Metric:
        return TorchAccuracy()

    def _accuracy_of_whole_labels(self) -> Metric:
        return MeanOfSamples(accuracy_of_whole_labels)

    def _made_metric(self, kind: str, args: Mapping[str, Any]) -> Metric:
        return metrics.made(kind, args, self.link)

    def _own_metric(self, name: str, found: Any, args: Mapping[str, Any]) -> Metric:
        return MeanOfSamples(self._per_sample("metric", name, found, args))

    def _per_sample(self, what: str, name: str, found: Any, args: Mapping[str, Any]) -> Callable[..., Any]:
        """Return a function of labels and outputs for one by import path, which torch calls as its own."""
        kind = found if inspect.isclass(found) else type(found)
        is_object = isinstance(found, torch.nn.Module)
        is_of_torch = found in _FUNCTIONS or issubclass(kind, _Loss)
        given = dict(args)
        if is_of_torch and not is_object and _takes(found, "reduction"):
            given = {"reduction": "none", **given}
        for key in _WEIGHTS & given.keys() if is_of_torch and not is_object else ():
            try:
                given[key] = torch.tensor(given[key], dtype=self._dtype)
            except (TypeError, ValueError):
                raise InputError(
                    f"{self._who}: {what} {name}: {key}: got {given[key]!r}, allowed: a list of numbers"
                ) from None
        call: Any = found(**given) if inspect.isclass(found) else partial(found, **given) if given else found
        if isinstance(call, torch.nn.Module) and any(each.requires_grad for each in call.parameters()):
            raise InputError(
                f"{self._who}: {what} {name}: it has weights of its own, which would not train, allowed: "
                "none; keep them in the model, and compute the loss there (loss: module)"
            )
        if is_of_torch:
            names = {found.__name__} if found in _FUNCTIONS else {each.__name__ for each in kind.__mro__}
            return partial(_with_outputs_first, call, not names.isdisjoint(_TAKE_CLASS_NUMBERS))
        if not callable(call) or any(hasattr(call, state) for state in ("update_state", "update", "compute")):
            raise InputError(
                f"{self._who}: {what} {name}: it makes a {type(call).__name__}, allowed: a function of "
                "labels and predictions that returns a number for each sample, or a class whose objects are "
                "called like that and keep no state (update, compute); hpcbal sums over samples itself"
            )
        self._check_order(what, name, call)
        return call

    def _check_order(self, what: str, name: str, call: Any) -> None:
        """Refuse a function whose names of arguments show that it takes outputs before labels."""
        taken = call.forward if isinstance(call, torch.nn.Module) else call
        try:
            first, second, *_ = inspect.signature(taken).parameters
        except (TypeError, ValueError):  # it has no signature, or fewer arguments: the call says so
            return
        if first.lower() in _OUTPUTS_NAMES and second.lower() in _LABELS_NAMES:
            raise InputError(
                f"{self._who}: {what} {name}: its arguments are called {first} and {second}, but hpcbal "
                "passes (labels, outputs) in this order, allowed: a function of labels first and outputs "
                f"second, such as def {what}({second}, {first})"
            )

    def _arguments(self, what: Literal["loss", "metric"], kind: str) -> Sequence[str]:
        if what == "metric":
            return metrics.arguments_of(kind)
        return list(inspect.signature(LOSSES[kind]).parameters)[2:]

    def _tensor(self, values: Any) -> Any:
        if not isinstance(values, Tensor):
            raise TypeError(f"the loss returned {type(values).__name__}, allowed: a tensor")
        return values

    def _like(self, values: Any, tensor: Any) -> Any:
        return torch.as_tensor(values, dtype=tensor.dtype, device=tensor.device)

    def _mean(self, values: Any, axes: tuple[int, ...]) -> Any:
        return values.mean(axes)

    def _sum_of_last(self, values: Any) -> Any:
        return values.sum(-1)

    def _take(self, values: Any, index: Any) -> Any:
        return values[index.long()]

    def _softmax(self, values: Any) -> Any:
        return torch.softmax(values, -1)

    def _sigmoid(self, values: Any) -> Any:
        return torch.sigmoid(values)

    def _log(self, values: Any) -> Any:
        return values.clamp(min=torch.finfo(self._dtype).eps).log()

    def _array(self, tensor: Any) -> Array:
        return array_of(tensor)


_FUNCTIONS = frozenset(
    value for name, value in vars(functional).items() if callable(value) and not name.startswith("_")
)


def _takes(function: Any, name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _with_outputs_first(call: Callable[..., Any], takes_class_numbers: bool, y: Tensor, p: Tensor) -> Any:
    """Call torch's loss: outputs come first, and labels have as many axes and, where needed, their type."""
    call = _on_device(call, p.device)
    if y.ndim == 1 and p.shape == (len(y), 1) and not takes_class_numbers:
        y = y.unsqueeze(-1)
    return call(p, y if takes_class_numbers else y.to(p.dtype))


def _on_device(call: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """The loss, with the weights in its arguments where outputs are."""
    if isinstance(call, torch.nn.Module):
        return call.to(device)
    if not isinstance(call, partial):
        return call
    moved = {
        key: value.to(device) if isinstance(value, Tensor) else value for key, value in call.keywords.items()
    }
    return partial(call.func, *call.args, **moved)
