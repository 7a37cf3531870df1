"""The keys of one DNN: model, initial weights, callbacks, batch size and stop rule."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, Strict, model_validator

from hpcbal import env
from hpcbal.config.schema.objective import (
    LOSS_ALLOWED,
    LOSS_WEIGHTS_ALLOWED,
    METRICS_ALLOWED,
    SMOOTHING_ALLOWED,
    WEIGHTS_ALLOWED,
    ClassWeighting,
    Loss,
    LossConfig,
    LossWeights,
    Metrics,
    Smoothing,
)
from hpcbal.config.schema.operations import AugmentOperation
from hpcbal.config.schema.optimizer import OptimizerConfig
from hpcbal.config.schema.section import (
    ARGS_ALLOWED,
    COUNT_ALLOWED,
    COUNT_OR_NULL_ALLOWED,
    IMPORT_ALLOWED,
    LEAST,
    MOST,
    NAME_ALLOWED,
    DirectoryName,
    ImportPath,
    PathText,
    Section,
    key,
    wrong,
)
from hpcbal.config.source.meant import did_you_mean, nearest
from hpcbal.events.history import (
    LESS_IS_BETTER,
    LOSS,
    VALIDATION,
    base_name,
    is_more_better,
    shows_more_better,
)
from hpcbal.kinds import MEMBER_NAME

if TYPE_CHECKING:
    from hpcbal.events.members import StopRule


ACCURACY = "accuracy"
_OF_VALIDATION = re.compile(r"val(idation)?[-_ ./]", re.IGNORECASE)
"""How people begin the names of metrics of validation samples."""
NO_OUTPUTS = "none, because loss is not a mapping {output: loss}"

CALLBACKS_ALLOWED = f"a list of {IMPORT_ALLOWED}, or of {{name: path, args: {{...}}}}"

INSTEAD_OF_KERAS_CALLBACKS = {
    "EarlyStopping": "stop.patience",
    "ModelCheckpoint": "checkpoint.keep",
    "ReduceLROnPlateau": "optimizer.schedule: plateau",
    "LearningRateScheduler": "optimizer.schedule",
    "TensorBoard": "the event files that every run writes (dnns/<name>/)",
    "CSVLogger": "results.csv and dnns/<name>/metrics.jsonl, which every run writes",
    "TerminateOnNaN": "nothing: a DNN whose loss is not finite fails by itself",
    "BackupAndRestore": "nothing: the same command resumes a run",
}
"""The counterpart in hpcbal of each class of keras.callbacks."""


def _from_name(value: Any) -> Any:
    """`mymodule:record` is short for `{name: mymodule:record}`."""
    return {"name": value} if isinstance(value, str) else value


class CallbackConfig(Section):
    """A callable for the end of each epoch."""

    name: ImportPath = key(..., "A function, or a class whose objects can be called.", IMPORT_ALLOWED)
    args: Mapping[str, Any] = key({}, "Its arguments.", ARGS_ALLOWED)


Callback = Annotated[CallbackConfig, BeforeValidator(_from_name)]


KERAS_FILES = (".keras", ".weights.h5")
"""How the names of files that Keras writes end."""

TORCH_FILES = (".pt", ".pth", ".safetensors")
"""How the names of files that PyTorch and safetensors write end."""

PATTERNS_ALLOWED = "a list of names of layers, in which * stands for any text, such as '[stem, block_*]'"
INIT_ALLOWED = (
    "null, FILE.keras, FILE.weights.h5, FILE.pt, FILE.pth, FILE.safetensors, DIR:DNN of another run, or "
    "a mapping"
)

LayerPatterns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Strict(False)]


def _from_text(value: Any) -> Any:
    """`FILE.pt` or another file is short for `{from: FILE.pt}`, and `DIR:DNN` for `{from: DIR, dnn: DNN}`."""
    if not isinstance(value, str):
        return value
    directory, colon, name = value.rpartition(":")
    if colon and not value.endswith((*KERAS_FILES, *TORCH_FILES)):
        return {"from": directory, "dnn": name}
    return {"from": value}


class InitConfig(Section):
    """Weights that a DNN starts from instead of random ones."""

    source: PathText = key(
        ...,
        "A file of Keras or PyTorch, or the output directory of another run.",
        "FILE.keras, FILE.weights.h5, FILE.pt, FILE.pth, FILE.safetensors, or a directory",
        alias="from",
        min_length=1,
    )
    dnn: DirectoryName | None = key(None, "Which DNN of the other run.", f"null, or {NAME_ALLOWED}")
    weights: Literal["best", "last"] | None = key(
        None, "Which weights of the other run; null: the best ones if they are kept.", "null, best, last"
    )
    layers: LayerPatterns = key((), "Layers that get these weights; empty: all.", PATTERNS_ALLOWED)
    skip: LayerPatterns = key((), "Layers that keep their random weights.", PATTERNS_ALLOWED)
    prefix: str = key(
        "",
        "Of a file of PyTorch or a run: take the names that begin with this, without it, such as `module.`.",
        "a text",
    )

    @property
    def path(self) -> Path:
        """The source, absolute, with variables replaced.

        Raises:
            InputError: if a variable is not set.
        """
        return Path(os.path.abspath(env.expanded(self.source, "init.from")))

    @property
    def is_keras_file(self) -> bool:
        """Whether the source is a file of Keras."""
        return self.source.endswith(KERAS_FILES)

    @property
    def is_torch_file(self) -> bool:
        """Whether the source is a file of PyTorch or safetensors."""
        return self.source.endswith(TORCH_FILES)

    @property
    def is_file(self) -> bool:
        """Whether the source is a file, and not a run."""
        return self.is_keras_file or self.is_torch_file

    @model_validator(mode="after")
    def _check(self) -> InitConfig:
        if self.prefix and self.is_keras_file:
            raise wrong("prefix", f"got {self.prefix!r}, allowed with a file of Keras: leave it out")
        if self.is_file:
            of_run: Mapping[str, str | None] = {"dnn": self.dnn, "weights": self.weights}
            for name, value in of_run.items():
                if value is not None:
                    raise wrong(name, f"got {value!r}, allowed with a file: leave it out")
        elif self.dnn is None:
            raise wrong(
                "dnn",
                f"got nothing, allowed: the name of a DNN of the run in {self.source!r} "
                f"(a file ends in {', '.join((*KERAS_FILES, *TORCH_FILES))})",
            )
        return self


Init = Annotated[InitConfig, BeforeValidator(_from_text)]


BalanceName = Literal["even", "fitted", "lb-bsp-gpu", "lb-bsp-cpu", "fixed"]
Shares = Annotated[tuple[Annotated[float, Field(ge=LEAST, le=MOST)], ...], Strict(False)]
SHARES_ALLOWED = "a list of numbers above 0 such as '[2, 1, 1]'"
SEED_ALLOWED = "null or a whole number from 0 to 2**32 - 1"
BALANCE_ALLOWED = f"null, {', '.join(get_args(BalanceName))}"


MOST_FOLDS = 100


class StopConfig(Section):
    """When a DNN has converged."""

    monitor: str | None = key(
        None,
        "Metric that is watched: loss, a metric of the DNN, or val_ and one of these; null: val_ and the "
        "first metric, or val_loss without metrics.",
        "null, loss, val_loss, or the name of a metric with or without val_",
        min_length=1,
    )
    mode: Literal["auto", "min", "max"] = key(
        "auto",
        "Better is less (min) or more (max); auto: max for accuracies and scores, min for losses and errors.",
        "auto, min, max",
    )
    min_delta: float = key(
        0.0, "An epoch is better only if it is better by more than this.", "a number, 0 or more", ge=0.0
    )
    patience: int | None = key(
        None, "Stop after this many epochs without a better one; null: never.", COUNT_OR_NULL_ALLOWED, ge=1
    )
    target: float | None = key(
        None, "Stop once the metric is at least as good as this; null: never.", "null or a number"
    )
    max_epochs: int = key(
        ..., "Stop after this many epochs at the latest.", COUNT_ALLOWED, ge=1, may_grow=True
    )

    @property
    def resolved_mode(self) -> Literal["min", "max"]:
        """`mode`, with auto resolved by the monitor."""
        if self.mode == "auto":
            return "min" if is_more_better(self.watched) is False else "max"
        return self.mode

    @property
    def watched(self) -> str:
        """`monitor`; a DNN fills it in (`DnnConfig`), a stop rule alone has that of a classifier."""
        return "val_accuracy" if self.monitor is None else self.monitor

    def rule(self) -> StopRule:
        """The rule as the state machine uses it."""
        from hpcbal.events.members import StopRule

        return StopRule(
            monitor=self.watched,
            mode=self.resolved_mode,
            min_delta=self.min_delta,
            patience=self.patience,
            target=self.target,
            max_epochs=self.max_epochs,
        )


class DnnConfig(Section):
    """One network to train."""

    sweep_keys: ClassVar[tuple[str, ...]] = ("grid", "zip", "search")

    name: DirectoryName = key(..., "Unique name, and its directory in the output.", NAME_ALLOWED)
    model: ImportPath = key(
        ...,
        "Callable that builds the network, called with input_shape, num_classes and args.",
        IMPORT_ALLOWED,
    )
    args: Mapping[str, Any] = key({}, "Arguments of the model's callable.", ARGS_ALLOWED)
    framework: Literal["tensorflow", "torch"] | None = key(
        None,
        "What trains it: tensorflow for Keras models, torch for modules of PyTorch; null: backend.name, or "
        "what the model's source imports.",
        "null, tensorflow, torch",
    )
    augment: Annotated[tuple[AugmentOperation, ...], Strict(False)] = key(
        (),
        "Operations on its training samples alone, after preprocessing; they keep shape and type.",
        "a list of operations such as 'random_flip: {horizontal: true}'",
    )
    optimizer: OptimizerConfig = key(..., "How gradients change the weights.", "keys of an optimizer")
    batch_size: int = key(..., "Samples per step, over all slots of the DNN.", COUNT_ALLOWED, ge=1)
    accumulate: int = key(
        1,
        "Slices in which a slot computes its share of a step, one after another; with more it needs less "
        "memory.",
        COUNT_ALLOWED,
        ge=1,
        may_change=True,
    )
    ema: float | None = key(
        None,
        "Decay of an exponential average of the weights, which is evaluated, kept and exported in their "
        "place; null: no average.",
        "null, or 0 < ema < 1",
        gt=0.0,
        lt=1.0,
    )
    stop: StopConfig = key(..., "When the DNN has converged.", "keys of a stop rule")
    balance: BalanceName | None = key(
        None, "How its steps are split; null: use balance.policy.", BALANCE_ALLOWED, may_change=True
    )
    seed: int | None = key(
        None,
        "Seed of its initial weights and random layers; null: derived from the run's seed and its name.",
        SEED_ALLOWED,
        ge=0,
        lt=2**32,
    )
    shares: Shares = key(
        (), "For fixed: weights of its slots; empty: use balance.shares.", SHARES_ALLOWED, may_change=True
    )
    compile: bool = key(
        False,
        "Whether torch.compile makes code for the module; for modules of PyTorch.",
        "true, false",
        may_change=True,
    )
    loss: Loss | None = key(
        None,
        "What training minimises; null: the cross entropy of classes, from logits.",
        LOSS_ALLOWED,
    )
    loss_weights: LossWeights | None = key(
        None,
        "How much the loss of each output counts in the sum that training minimises; null: 1.",
        f"null or {LOSS_WEIGHTS_ALLOWED}",
    )
    metrics: Metrics | None = key(
        None,
        "What is measured in every epoch besides the loss; null: accuracy for classes, else nothing.",
        METRICS_ALLOWED,
    )
    label_smoothing: Smoothing = key(
        0.0,
        "Share of a label that is spread over all classes; for cross entropies.",
        SMOOTHING_ALLOWED,
    )
    class_weights: ClassWeighting | None = key(
        None,
        "How much samples of a class count in the training loss, 1 where none is given; balanced: inversely "
        "to their number.",
        WEIGHTS_ALLOWED,
    )
    init: Init | None = key(None, "Weights that it starts from; null: random ones.", INIT_ALLOWED)
    freeze: LayerPatterns = key((), "Layers that are not trained.", PATTERNS_ALLOWED)

    k_fold: int | None = key(
        None,
        "Number of parts (folds) of the training samples; the DNN becomes as many members, each trained "
        "without one fold and validated on it; null: one member, trained on all.",
        f"null or a whole number from 2 to {MOST_FOLDS}",
        ge=2,
        le=MOST_FOLDS,
    )
    fold: int | None = key(
        None,
        "Which fold a member leaves out; null with k_fold in a file: a member for each of them.",
        "null or a whole number from 1 to k_fold",
        ge=1,
    )
    callbacks: Annotated[tuple[Callback, ...], Strict(False)] = key(
        (), "Functions of your own, called at the end of each epoch.", CALLBACKS_ALLOWED, may_change=True
    )

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that have losses of their own; none if there is one loss."""
        return tuple(self.loss) if isinstance(self.loss, Mapping) else ()

    def of_output(self, name: str) -> DnnConfig:
        """Return the configuration of a DNN with nothing but one of its outputs.

        Args:
            name: of the output; one that has no loss of its own gets the one of the DNN.
        """
        loss, metrics, smoothing = self.loss, self.metrics, self.label_smoothing
        own: Mapping[str, Any] = {
            "name": f"{self.name}: output {name}",
            "loss": loss.get(name) if isinstance(loss, Mapping) else loss,
            "metrics": metrics.get(name) if isinstance(metrics, Mapping) else metrics,
            "label_smoothing": smoothing.get(name, 0.0) if isinstance(smoothing, Mapping) else smoothing,
        }
        return self.model_copy(update=own)

    @property
    def metric_keys(self) -> tuple[str, ...]:
        """Names of the metrics besides the loss, as far as the configuration alone decides."""
        metrics = self.metrics
        outputs = self.outputs or (tuple(metrics) if isinstance(metrics, Mapping) else ())
        found: list[str] = []
        for name in outputs or ("",):
            own = self.of_output(name) if name else self
            of_one = own.metrics
            assert not isinstance(of_one, Mapping)
            prefix = f"{name}_" if len(outputs) > 1 else ""
            if of_one is not None:
                found += [f"{prefix}{metric.key}" for metric in of_one]
            elif own.loss is None:
                found.append(f"{prefix}{ACCURACY}")
        return tuple(found)

    @property
    def loss_keys(self) -> tuple[str, ...]:
        """Names of the losses of single outputs, where there are several."""
        return tuple(f"{name}_{LOSS}" for name in self.outputs) if len(self.outputs) > 1 else ()

    @model_validator(mode="after")
    def _check_outputs(self) -> DnnConfig:
        """Check that keys by output name the same outputs, which have losses."""
        outputs = self.outputs
        by_output = {
            "metrics": self.metrics,
            "loss_weights": self.loss_weights,
            "label_smoothing": self.label_smoothing,
        }
        for name, given in by_output.items():
            for output in given if isinstance(given, Mapping) else ():
                if not outputs and name == "metrics" and self.has_own_loss:
                    continue
                if output not in outputs:
                    allowed = f"the outputs in loss ({', '.join(outputs)})" if outputs else NO_OUTPUTS
                    hint = did_you_mean(output, outputs)
                    raise wrong(name, f"got the output {output!r}{hint}, allowed: {allowed}")
        if isinstance(self.loss, Mapping):
            for output, loss in self.loss.items():
                if not output.isidentifier() or (loss is not None and loss.is_of_module):
                    what = f"{output!r}: module" if loss is not None and loss.is_of_module else repr(output)
                    raise wrong(
                        "loss",
                        f"got {what}, allowed: a loss for each output by its name, a name of Python; or "
                        "module alone, for a module that computes the loss of all of its outputs",
                    )
            if len(outputs) > 1 and isinstance(self.metrics, tuple):
                raise wrong("metrics", "got a list, allowed with several outputs: a mapping {output: list}")
            smoothing, weights = self.label_smoothing, self.class_weights
            if len(outputs) > 1 and smoothing and not isinstance(smoothing, Mapping):
                raise wrong(
                    "label_smoothing",
                    f"got {smoothing!r}, allowed with several outputs: a mapping {{output: number}}",
                )
            if len(outputs) > 1 and weights:
                raise wrong(
                    "class_weights",
                    f"got {weights!r}, allowed with several outputs: leave it out; datasets may have "
                    "sample_weights",
                )
        return self

    @property
    def has_own_loss(self) -> bool:
        """Whether the model computes its loss itself."""
        return isinstance(self.loss, LossConfig) and self.loss.is_of_module

    @model_validator(mode="after")
    def _check_folds(self) -> DnnConfig:
        if self.fold is not None and (self.k_fold is None or self.fold > self.k_fold):
            most = "leave it out without k_fold" if self.k_fold is None else f"1 to k_fold ({self.k_fold})"
            raise wrong("fold", f"got {self.fold}, allowed: {most}")
        if self.k_fold is not None and self.fold is None:
            raise wrong("fold", "got nothing beside k_fold, allowed: k_fold in the file, or a fold, too")
        if self.fold is None and MEMBER_NAME.fullmatch(self.name):
            raise wrong(
                "name",
                f"got {self.name}, allowed without k_fold: a name that does not end like those of its "
                "members; results would show it as one of several folds",
            )
        return self

    @model_validator(mode="after")
    def _check_slices(self) -> DnnConfig:
        if self.accumulate > self.batch_size:
            raise wrong(
                "accumulate", f"got {self.accumulate}, allowed: at most batch_size ({self.batch_size})"
            )
        return self

    @model_validator(mode="after")
    def _resolve_stop(self) -> DnnConfig:
        keys = self.metric_keys
        stop = self.stop
        if stop.monitor is None:
            monitor = VALIDATION + (keys[0] if keys and len(self.outputs) < 2 else LOSS)
            stop = stop.model_copy(update={"monitor": monitor})
        name = base_name(stop.watched)
        names = [LOSS, *keys, *self.loss_keys]
        if name not in names:
            allowed = ", ".join([*names, *(VALIDATION + each for each in names)])
            start = _OF_VALIDATION.match(stop.watched)
            near = nearest(stop.watched[start.end() if start else 0 :], names, cutoff=0.75)  # mae is not mse
            prefix = VALIDATION if start else ""
            hint = "" if near is None else f" (did you mean '{prefix}{near}'?)"
            raise wrong("stop.monitor", f"got {stop.watched!r}{hint}, allowed: {allowed}")
        if name == LOSS and self.loss is None and stop.target is not None and stop.target < 0.0:
            raise wrong(
                "stop.target", f"got {stop.target}, allowed: target >= 0 ({stop.watched} is at least 0)"
            )
        natural = {"accuracy": "max", LOSS: "min"}.get(name)
        if natural is not None and stop.mode not in ("auto", natural):
            raise wrong(
                "stop.mode", f"got {stop.mode!r}, allowed: auto or {natural} with monitor {stop.watched}"
            )
        if stop.target is not None and name == "accuracy" and not 0.0 < stop.target <= 1.0:
            raise wrong(
                "stop.target", f"got {stop.target}, allowed: 0 < target <= 1 ({stop.watched} is a share)"
            )
        is_better = is_more_better(name)
        if stop.mode == "auto" and is_better is None:
            raise wrong(
                "stop.mode",
                f"got 'auto', but it is not known whether more of {name} is better, allowed: max; or, if "
                f"less is better, give the metric a shown_as with one of {', '.join(LESS_IS_BETTER)} in it",
            )
        if stop.mode != "auto" and (stop.mode == "max") != shows_more_better(name):
            more, word = ("more", "without") if stop.mode == "max" else ("less", "with")
            raise wrong(
                "stop.mode",
                f"got {stop.mode!r}, but tables and results take the name {name} for one of which "
                f"{'less' if stop.mode == 'max' else 'more'} is better; if {more} is better, give the metric "
                f"a shown_as {word} one of {', '.join(LESS_IS_BETTER)} in it",
            )
        object.__setattr__(self, "stop", stop)
        return self

    def for_prediction(self) -> DnnConfig:
        """Return what builds the network for predictions, without what only training needs.

        Weights of classes belong to the training loss, and weights that are kept are averages already.
        """
        return self.model_copy(update={"class_weights": None, "compile": False, "ema": None})
