"""Check that a user's module can be trained: call it on a few samples, and look at what changes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.source.meant import did_you_mean
from hpcbal.data.spec import CLASS_LABEL, UNNAMED, LabelSpec, SampleSpec
from hpcbal.errors import InputError, UserCodeError
from hpcbal.training.backend import are_shares
from hpcbal.training.objective import Objective
from hpcbal.training.outputs import Outputs, by_name, check_names, named_outputs
from hpcbal.training.rank_share import module_shape
from hpcbal.training.torch.batch_norm import COUNTER, Buffer, Statistics, buffers_of
from hpcbal.training.torch.calls import call, check_own_loss, check_unchanged, own_losses
from hpcbal.training.torch.inputs import AnyTensor, probe_tensors, version_of
from hpcbal.training.torch.objective import TorchObjective
from hpcbal.training.user_model import (
    NUM_PROBES,
    PROBE_LENGTHS,
    SUM_TOLERANCE,
    labels_of_probes,
    user_errors,
)
from hpcbal.training.weights import is_meant, unknown_layer

_ACTIVATIONS = {
    torch.nn.Softmax: "softmax",
    torch.nn.Sigmoid: "sigmoid",
    torch.nn.LogSoftmax: "log_softmax",
    torch.nn.ReLU: "relu",
    torch.nn.Tanh: "tanh",
    torch.nn.Linear: "linear",
}
_OF_NORMS = ("running_mean", "running_var", COUNTER)
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


@dataclass(frozen=True, slots=True)
class Checked:
    """A module that can be trained.

    Attributes:
        objective: its loss and metrics.
        statistics: buffers that a training step changes.
        takes: names of the arguments that its `forward` takes: of arrays, or besides samples without a name
            `mask`, `lengths`.
        frozen: parts of the module that stay in inference.
        warnings: what is probably a mistake in it, as sentences.
        outputs: names of the labels; none: a label without a name.
    """

    objective: Outputs
    statistics: Statistics
    takes: frozenset[str]
    frozen: list[torch.nn.Module]
    warnings: list[str] = field(default_factory=list)
    outputs: tuple[str, ...] = ()


def checked(
    dnn: DnnConfig,
    module: Any,
    sample: SampleSpec,
    num_classes: int,
    dtype: torch.dtype,
    label: LabelSpec = CLASS_LABEL,
) -> Checked:
    """Check a module, freeze what shall not train, and find its loss, its metrics and its moving statistics.

    Lazy modules get their parameters here. Weights and statistics are those of before.

    Args:
        dnn: for messages.
        module: what the user's callable returned.
        sample: shape of one sample in the data plane; None where samples differ in length.
        num_classes: number of logits, with the default loss.
        dtype: of weights and outputs.
        label: shape and type of one label.

    Raises:
        InputError: if it is no module, has nothing to train, or returns what its loss does not take: by
            default, anything but the logits of `num_classes` classes.
        UserCodeError: if it cannot be called.
    """
    who = f"DNN {dnn.name}: model {dnn.model}"
    _check_kind(who, module)
    _check_parameters(who, module, dtype)
    check_names(dnn, label)
    shape, names = module_shape(sample.shape), [name for name, _ in label.parts]
    takes = frozenset(_arguments(module) & {"mask", "lengths"})
    if sample.parts:
        takes = _arrays_taken(who, module, [name for name, _ in sample.parts])
    is_padded = None in shape
    if is_padded and not takes:
        raise InputError(
            f"{who} has a forward without the argument mask or lengths, but samples of shape {shape} differ "
            "in length and are padded with zeros; allowed: forward(self, x, mask), where mask is true within "
            "a sample, forward(self, x, lengths), as pack_padded_sequence takes them, or a resize"
        )
    try:
        returned, probes = _outputs(dnn, module, sample, dtype, takes, PROBE_LENGTHS[0])
    except UserCodeError:
        if not is_padded:
            raise
        returned, probes = _outputs(dnn, module, sample, dtype, takes, PROBE_LENGTHS[1])
    _check_shapes(who, module)
    outputs = named_outputs(who, returned, names)
    endings = {UNNAMED: _ending(module)}
    has_loss = dnn.has_own_loss
    if has_loss and not names and torch.is_tensor(outputs) and not _are_logits_of_classes(outputs, label):
        endings[UNNAMED] = "softmax"
    objectives = Outputs(dnn, label, num_classes, partial(TorchObjective, dtype=dtype), endings)
    warnings = []
    for name, objective in objectives.by_name.items():
        classes = label.by_name[name].num_classes or num_classes
        of = f"{who}: output {name}" if name else who
        warnings += _check_output(
            of, objective, by_name(outputs).get(name, outputs), classes, endings.get(name)
        )
    labels = {name: torch.from_numpy(y) for name, y in labels_of_probes(label, num_classes).items()}
    labels = {name: y.to(dtype) if y.is_floating_point() else y for name, y in labels.items()}
    objectives.try_on(labels, outputs)
    given: AnyTensor = labels.get(UNNAMED, labels)
    if has_loss:
        check_own_loss(dnn, module, probes[0], given, probes[1], outputs)
    elif inspect.isroutine(getattr(module, "loss", None)):
        warnings.append("it has a method loss, which is used only with 'loss: module'")
    frozen = freeze_modules(dnn, module)
    _check_gradients(who, module)
    _check_state(who, module)

    def run() -> Any:
        if has_loss:
            return own_losses(who, module, probes[0], given, probes[1])[0]
        return named_outputs(f"{who} in training", call(module, takes, *probes), names)

    shapes = (
        {UNNAMED: (NUM_PROBES,)} if has_loss else {n: tuple(y.shape) for n, y in by_name(outputs).items()}
    )
    statistics, found = _try_training(dnn, module, probes[0], run, frozen, shapes)
    return Checked(objectives, statistics, takes, frozen, [*warnings, *found], tuple(names))


def _check_output(
    who: str, objective: Objective, outputs: Any, num_classes: int, ending: str | None
) -> list[str]:
    """Check one output of the module for the probes; returns warnings."""
    takes_logits = objective.takes_classes
    if not torch.is_tensor(outputs):
        what = f", the logits of {num_classes} classes" if takes_logits else ""
        raise InputError(f"{who} returns a {type(outputs).__name__}, allowed: one tensor{what}")
    if not takes_logits:
        return []
    if tuple(outputs.shape) != (NUM_PROBES, num_classes):
        raise InputError(
            f"{who} gives outputs of shape {tuple(outputs.shape)} for {NUM_PROBES} samples, allowed: "
            f"{(NUM_PROBES, num_classes)}, the logits of {num_classes} classes"
        )
    if ending in ("softmax", "sigmoid") or (num_classes > 1 and _are_probabilities(outputs)):
        what = f"ends in {ending}" if ending in ("softmax", "sigmoid") else "returns probabilities"
        raise InputError(
            f"{who} {what}, allowed: logits, because the loss applies softmax itself and a second one "
            "trains badly; remove the activation at the end of the module"
        )
    if ending not in ("relu", "tanh"):
        return []
    return [
        f"it ends in {ending}, but the loss takes logits, which may be any numbers, so it may not "
        "learn; remove the activation at the end of the module"
    ]


def _arrays_taken(who: str, module: torch.nn.Module, names: Sequence[str]) -> frozenset[str]:
    """The arrays that `forward` takes, by keyword.

    Raises:
        InputError: if it takes none of them, or needs another argument.
    """
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # such as a module that was scripted
        return frozenset(names)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return frozenset(names)
    known = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    taken = frozenset(name for name in names if name in known)
    wrong = [name for name in needed if name not in taken]
    if wrong or not taken:
        what, hint = "a forward without arguments", ""
        if wrong and wrong[0] in names:
            what = f"a forward that takes {wrong[0]!r} by position only, before a /"
        elif wrong:
            what = f"a forward with the argument {wrong[0]!r}"
            hint = did_you_mean(wrong[0], names)
        raise InputError(
            f"{who} has {what}{hint}, allowed: arguments with the names of arrays of the samples, which are "
            f"passed by keyword: {', '.join(names)}"
        )
    return taken


def _check_kind(who: str, module: Any) -> None:
    if inspect.isclass(module) and issubclass(module, torch.nn.Module):
        raise InputError(
            f"{who} returned the class {module.__name__}, allowed: an object, {module.__name__}(...)"
        )
    if type(module).__name__ == "OptimizedModule":
        raise InputError(
            f"{who} returned a module of torch.compile, allowed: the module that was given to it; names in "
            "checkpoints and exports would begin with _orig_mod"
        )
    if not isinstance(module, torch.nn.Module):
        lacks = " (does the function lack a return?)" if module is None else ""
        is_keras = any(base.__module__.startswith("keras.") for base in type(module).__mro__)
        advice = "; set framework: tensorflow for it" if is_keras else ""
        raise InputError(f"{who} returned {type(module).__name__}{lacks}, allowed: a torch.nn.Module{advice}")
    for path, part in module.named_modules():
        if type(part).__name__ in _WRAPPERS and type(part).__module__.startswith("torch."):
            where = f"has in {path}" if path else "returned"
            raise InputError(
                f"{who} {where} a {type(part).__name__}, allowed: the module in it (module.module); hpcbal "
                "splits the samples and sums the gradients itself"
            )


def _arguments(module: torch.nn.Module) -> set[str]:
    try:
        return set(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # such as a module that was scripted
        return set()


def _check_parameters(who: str, module: torch.nn.Module, dtype: torch.dtype) -> None:
    parameters = dict(module.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise InputError(
            f"{who} has no weights to train, allowed: at least one parameter with requires_grad; make layers "
            "in __init__ (or in the function), and assign them to attributes of the module"
        )
    buffers = {buffer.path: buffer.tensor for buffer in buffers_of(module)}
    for name, tensor in {**parameters, **buffers}.items():
        if tensor.device.type != "cpu":
            raise InputError(
                f"{who}: {name} is on the device {tensor.device}, allowed: leave the module on the CPU; "
                "hpcbal moves it to the device of the slot"
            )
    for name, parameter in parameters.items():
        if parameter.dtype != dtype:
            raise InputError(
                f"{who}: {name} has the type {_name_of(parameter.dtype)}, allowed: {_name_of(dtype)}, as "
                "backend.precision says (mixed_bfloat16 computes in 16 bits on such weights)"
            )


def _check_shapes(who: str, module: torch.nn.Module) -> None:
    """Refuse lazy modules that a call has given no shapes."""
    tensors = {**dict(module.named_parameters()), **{each.path: each.tensor for each in buffers_of(module)}}
    for name, tensor in tensors.items():
        if torch.nn.parameter.is_lazy(tensor):
            raise InputError(
                f"{who}: {name} belongs to a lazy module that no call has reached, so it has no shape, "
                "allowed: lazy modules that forward always calls; remove it, or give it its sizes"
            )


def _outputs(
    dnn: DnnConfig,
    module: torch.nn.Module,
    sample: SampleSpec,
    dtype: torch.dtype,
    takes: frozenset[str],
    length: int,
) -> tuple[Any, tuple[AnyTensor, torch.Tensor | None]]:
    """The outputs of inference for a few samples of zeros and ones, and these samples with their mask."""
    probes = probe_tensors(sample, dtype, length)
    mask, shape = None, module_shape(sample.shape)
    if None in shape:
        mask = torch.ones(NUM_PROBES, *(length for n in shape if n is None), dtype=torch.bool)
    version = version_of(probes)
    module.eval()
    shown = {name: module_shape(each.shape) for name, each in sample.parts} or tuple(shape)
    with user_errors(dnn, f"calling it on {NUM_PROBES} samples of shape {shown}"), torch.no_grad():
        outputs = call(module, takes, probes, mask)
    check_unchanged(f"DNN {dnn.name}: model {dnn.model}", probes, version)
    parts = (
        outputs.values()
        if isinstance(outputs, Mapping)
        else outputs
        if isinstance(outputs, tuple)
        else [outputs]
    )
    if any(each.is_complex() for each in parts if torch.is_tensor(each)):
        raise InputError(
            f"DNN {dnn.name}: model {dnn.model} returns complex numbers, allowed: real ones; take abs() or "
            "torch.view_as_real of them"
        )
    if not all(torch.isfinite(each).all() for each in parts if torch.is_tensor(each)):
        raise InputError(
            f"DNN {dnn.name}: model {dnn.model} returns NaN or infinity for samples of zeros and ones, "
            "allowed: numbers; check its first weights"
        )
    return outputs, (probes, mask)


def _try_training(
    dnn: DnnConfig,
    module: torch.nn.Module,
    samples: AnyTensor,
    run: Callable[[], Any],
    frozen: Sequence[torch.nn.Module],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[Statistics, list[str]]:
    """The buffers that a training step changes, found by one, and a warning of those that are not updated.

    Args:
        samples: what `run` reads.
        run: what a step computes of them: outputs, or losses.
        shapes: of what `run` must return, those of inference, by output.

    Raises:
        InputError: if the module changes its samples in training, returns something else than in inference,
            or what it returns does not depend on what is to be trained.
    """
    who = f"DNN {dnn.name}: model {dnn.model}"
    buffers = buffers_of(module)
    before = [(buffer.tensor, buffer.tensor.clone(), buffer.tensor._version) for buffer in buffers]
    version, unknown = version_of(samples), _unknown_weights(module)
    module.train()
    for part in frozen:
        part.eval()
    try:
        with user_errors(dnn, f"calling it on {NUM_PROBES} samples in training"), _safe_groups(module):
            found = run()
        check_unchanged(who, samples, version)
        changed = [
            (buffer, buffer.tensor.shape == values.shape)
            for buffer, (tensor, values, version) in zip(buffers, before, strict=True)
            if buffer.tensor is not tensor
            or tensor._version != version
            or not torch.equal(tensor, values)  # batch normalisation does not count its changes as versions
        ]
    finally:
        for buffer, (tensor, values, _) in zip(buffers, before, strict=True):
            with torch.no_grad():
                tensor.copy_(values)
            buffer.module._buffers[buffer.name] = tensor
    outputs = by_name(found)
    for name, shape in shapes.items():
        own: Any = outputs.get(name)
        if not torch.is_tensor(own) or own.shape != shape:
            is_tensor = isinstance(own, torch.Tensor)
            got = f"outputs of shape {tuple(own.shape)}" if is_tensor else type(own).__name__
            raise InputError(
                f"{who} returns {got} in training, allowed: one tensor of shape {shape}, as in "
                "inference; switch off auxiliary outputs"
            )
    if not any(own.requires_grad for own in outputs.values()):
        returned = "losses" if dnn.has_own_loss else "outputs"
        raise InputError(
            f"{who} returns {returned} that do not depend on a weight to train, allowed: {returned} with a "
            "gradient; remove detach(), torch.no_grad() or argmax from its code"
        )
    _check_trained(who, module, unknown, list(outputs.values()))
    # The mean of a layer that gives zeros is zero, as it was before; once it learns, it moves.
    norms = {id(buffer.module) for buffer, _ in changed if isinstance(buffer.module, _NormBase)}
    names = {id(buffer) for buffer, _ in changed}
    changed += [
        (buffer, True)
        for buffer in buffers
        if id(buffer) not in names and id(buffer.module) in norms and buffer.name in _OF_NORMS
    ]
    moving = [buffer for buffer, has_same_shape in changed if has_same_shape and _can_move(buffer)]
    left = [buffer for buffer, _ in changed if buffer not in moving]
    shown = [buffer.path for buffer, has_same_shape in changed if has_same_shape and buffer in left]
    text = (
        "not updated in training, because they are not floating-point numbers, or not in the state_dict "
        f"(persistent=False): {', '.join(shown)}"
    )
    return Statistics(moving, left), [text] if shown else []


@contextlib.contextmanager
def _safe_groups(module: torch.nn.Module) -> Iterator[None]:
    """Let layers that get inputs without a gradient in the block have contiguous ones from then on.

    On CPUs PyTorch (2.13) crashes in the backward pass of a `GroupNorm` that trains on inputs with the
    channels last that need no gradient: those of the first layer, or behind frozen layers.
    """
    norms = [each for each in module.modules() if isinstance(each, torch.nn.GroupNorm) and each.affine]
    found: dict[int, torch.nn.Module] = {}

    def look(norm: torch.nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        if not _only(args, named).requires_grad:
            found[id(norm)] = norm

    handles = [norm.register_forward_pre_hook(look, with_kwargs=True) for norm in norms]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    for norm in found.values():
        norm.register_forward_pre_hook(
            lambda _, args, named: ((_only(args, named).contiguous(),), {}), with_kwargs=True
        )


def _only(args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Return the argument of a call with one argument, which may be named."""
    (argument,) = (*args, *named.values())
    return argument


def _check_trained(
    who: str, module: torch.nn.Module, names: Mapping[int, str], outputs: Sequence[torch.Tensor]
) -> None:
    """Refuse weights that a module has but does not know: they would neither train nor be saved.

    Args:
        module: knows the weights that train.
        names: from `_unknown_weights`.
        outputs: what a training step computes, with its graph.

    Raises: InputError: if outputs depend on one.
    """
    known = {id(parameter) for parameter in module.parameters()}
    nodes, seen = [each.grad_fn for each in outputs if each.grad_fn is not None], set()
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        nodes += [before for before, _ in node.next_functions if before is not None]
        weight = getattr(node, "variable", None)
        name = names.get(id(weight))
        if name is None and isinstance(weight, torch.nn.Parameter) and id(weight) not in known:
            name = f"a torch.nn.Parameter of shape {tuple(weight.shape)} outside of it"
        if name is not None:
            raise InputError(
                f"{who}: its outputs depend on {name}, which is no parameter of the module and would neither "
                "train nor be saved, allowed: layers in attributes or in a ModuleList (no plain list), and "
                "tensors in torch.nn.Parameter"
            )


def _unknown_weights(module: torch.nn.Module) -> dict[int, str]:
    """Return names of tensors that need a gradient and lie in plain attributes, by their ids."""
    known = {id(parameter) for parameter in module.parameters()}
    found: dict[int, str] = {}

    def look(value: Any, path: str, depth: int) -> None:
        if isinstance(value, torch.nn.Module):
            value = dict(value.named_parameters())
        if isinstance(value, torch.Tensor) and value.requires_grad and id(value) not in known:
            found[id(value)] = path
        elif depth and isinstance(value, Mapping):
            for key, each in value.items():
                look(each, f"{path}.{key}", depth - 1)
        elif depth and isinstance(value, list | tuple):
            for index, each in enumerate(value):
                look(each, f"{path}[{index}]", depth - 1)

    for path, part in module.named_modules():
        for name, value in vars(part).items():
            look(value, f"{path}.{name}" if path else name, 3)
    return found


def _can_move(buffer: Buffer) -> bool:
    is_kept = buffer.name not in buffer.module._non_persistent_buffers_set
    return is_kept and (buffer.tensor.is_floating_point() or buffer.name == COUNTER)


def _check_gradients(who: str, module: torch.nn.Module) -> None:
    """Refuse layers with sparse gradients: ranks sum dense ones.

    Raises: InputError: if there is one that trains.
    """
    for path, part in module.named_modules():
        is_sparse = isinstance(part, torch.nn.Embedding | torch.nn.EmbeddingBag) and part.sparse
        if is_sparse and part.weight.requires_grad:
            raise InputError(
                f"{who}: {path or 'it'} is an embedding ({type(part).__name__}) with sparse=True, allowed: "
                "sparse=False, because ranks sum gradients as whole tensors; or freeze it"
            )


def _check_state(who: str, module: torch.nn.Module) -> None:
    """Refuse a `state_dict` that cannot be saved, and give each tensor in it memory of its own.

    Raises:
        InputError: if it holds what is no tensor, or numbers of a type that NumPy does not have.
    """
    for name, value in module.state_dict().items():
        if not torch.is_tensor(value):
            raise InputError(
                f"{who}: {name} in its state_dict is a {type(value).__name__}, allowed: tensors; a layer's "
                "get_extra_state is not saved here"
            )
        try:
            torch.empty(0, dtype=value.dtype).numpy()
        except TypeError:
            raise InputError(
                f"{who}: {name} has the type {_name_of(value.dtype)}, allowed: a type that NumPy has, such "
                "as float32"
            ) from None
    for tensor in (*module.parameters(), *(buffer.tensor for buffer in buffers_of(module))):
        if any(stride == 0 and n > 1 for stride, n in zip(tensor.stride(), tensor.shape, strict=True)):
            tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)


def freeze_modules(dnn: DnnConfig, module: torch.nn.Module) -> list[torch.nn.Module]:
    """Freeze the modules that `dnn.freeze` names, with all that they hold, and return them.

    Parameters that it names, such as `cls_token`, are frozen, too.

    Raises:
        InputError: if a pattern names no module with weights and no parameter, or nothing is left to train.
    """
    named = [(path, part) for path, part in module.named_modules() if path and _has_weights(part)]
    parameters = dict(module.named_parameters())
    known = [*(path for path, _ in named), *(name for name in parameters if "." not in name)]
    for pattern in dnn.freeze:
        problem = unknown_layer(pattern, known)
        if problem is not None and not any(is_meant(name, pattern) for name in parameters):
            raise InputError(f"DNN {dnn.name}: freeze: {problem}")

    def is_frozen(path: str) -> bool:
        return any(is_meant(path, pattern) for pattern in dnn.freeze)

    frozen = [part for path, part in named if is_frozen(path)]
    for part in (*frozen, *(parameter for name, parameter in parameters.items() if is_frozen(name))):
        part.requires_grad_(False)
    if dnn.freeze and not any(parameter.requires_grad for parameter in module.parameters()):
        raise InputError(
            f"DNN {dnn.name}: freeze: {list(dnn.freeze)} freezes all layers, allowed: patterns that leave one"
        )
    return frozen


def _has_weights(module: torch.nn.Module) -> bool:
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


def _ending(module: torch.nn.Module) -> str | None:
    """The activation at the end of a `Sequential`; None if it is unknown."""
    last: torch.nn.Module = module
    while isinstance(last, torch.nn.Sequential) and len(last):
        last = last[-1]
    return _ACTIVATIONS.get(type(last)) if last is not module else None


def _are_probabilities(outputs: torch.Tensor) -> bool:
    values = outputs.double()
    sums = values.sum(dim=-1)
    return bool((values >= 0.0).all()) and bool(((sums - 1.0).abs() <= SUM_TOLERANCE).all())


def _are_logits_of_classes(outputs: torch.Tensor, label: LabelSpec) -> bool:
    """Whether outputs have a number, and no probability, for each class of each label, in their last axis."""
    shape, num_classes = tuple(outputs.shape[1:]), outputs.shape[-1]
    has_classes = num_classes > 1 and (shape == (*label.shape, num_classes) or are_shares(label, num_classes))
    return has_classes and not _are_probabilities(outputs)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
