"""The optimizer of a DNN: algorithm, learning rate and how it changes, clipping, decay of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, Strict, model_validator

from hpcbal.config.schema.section import (
    ARGS_ALLOWED,
    COUNT_ALLOWED,
    MOST,
    Section,
    is_import_path,
    key,
    wrong,
)
from hpcbal.config.source.meant import did_you_mean

if TYPE_CHECKING:
    from hpcbal.policies.learning_rate import RateSchedule

OptimizerName = Literal[
    "sgd",
    "adam",
    "adamw",
    "rmsprop",
    "adagrad",
    "adadelta",
    "adamax",
    "nadam",
    "radam",
    "lion",
    "ftrl",
    "adafactor",
    "asgd",
    "rprop",
]
OPTIMIZERS: tuple[str, ...] = get_args(OptimizerName)

TORCH_OPTIMIZERS: Mapping[str, str] = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "adadelta": "Adadelta",
    "adamax": "Adamax",
    "nadam": "NAdam",
    "radam": "RAdam",
    "asgd": "ASGD",
    "rprop": "Rprop",
    "adafactor": "Adafactor",
}
"""Classes of `torch.optim`; each steps with the gradients that it is given, without calling the model."""

KERAS_OPTIMIZERS = tuple(name for name in OPTIMIZERS if name not in ("asgd", "radam", "rprop"))
"""Names that `keras.optimizers` has."""

_KEYS_OF: Mapping[str, tuple[str, ...]] = {
    "constant": (),
    "step": ("at", "factor"),
    "exponential": ("factor", "every"),
    "cosine": ("length", "final"),
    "plateau": ("factor", "patience", "min_delta", "cooldown", "final"),
}
"""The keys of each schedule besides `unit` and `warmup`; one of the user's own has `args`."""

SCHEDULE_ALLOWED = f"null, {', '.join(_KEYS_OF)}, or an import path package.module:name"
_TIME = "epochs or steps, by unit"
_FACTORS = {"step": 0.1, "exponential": 0.9, "plateau": 0.1}

Times = Annotated[tuple[Annotated[float, Field(gt=0.0, le=MOST)], ...], Strict(False)]


def _from_name(value: Any) -> Any:
    """`cosine` is short for `{name: cosine}`."""
    return {"name": value} if isinstance(value, str) else value


class ScheduleOfRateConfig(Section):
    """How the learning rate changes while a DNN trains."""

    name: str = key(..., "How it decays, or a callable of your own.", SCHEDULE_ALLOWED, min_length=1)
    unit: Literal["epochs", "steps"] = key("epochs", "Unit of all times.", "epochs, steps")
    warmup: float = key(
        0.0, "Grow linearly from the first step on, for this time.", f"{_TIME}, 0 or more", ge=0.0
    )
    at: Times = key((), "step: multiply by factor at each of these times.", "ascending numbers above 0")
    factor: float | None = key(
        None,
        "step, exponential, plateau: multiply by this; null: 0.1, 0.9 and 0.1.",
        "null, or 0 < factor < 1",
        gt=0.0,
        lt=1.0,
    )
    every: float = key(
        1.0, "exponential: multiply by factor in this time, smoothly.", f"{_TIME}, above 0", gt=0.0
    )
    length: float | None = key(
        None,
        "cosine: it ends at this time; null: at stop.max_epochs.",
        f"null, or {_TIME}, above warmup",
        gt=0.0,
    )
    final: float = key(
        0.0, "cosine, plateau: least share of learning_rate.", "0 <= final < 1", ge=0.0, lt=1.0
    )
    patience: int = key(
        10, "plateau: fall after this many epochs without a better stop.monitor.", COUNT_ALLOWED, ge=1
    )
    min_delta: float = key(
        0.0, "plateau: an epoch is better only if by more than this.", "a number, 0 or more", ge=0.0
    )
    cooldown: int = key(
        0, "plateau: epochs after a fall that count for nothing.", "a whole number, 0 or more", ge=0
    )
    args: Mapping[str, Any] = key({}, "Arguments of a callable of your own.", ARGS_ALLOWED)

    @model_validator(mode="after")
    def _check(self) -> ScheduleOfRateConfig:
        is_own = self.name not in _KEYS_OF
        if is_own and not is_import_path(self.name):
            hint = did_you_mean(self.name, _KEYS_OF)
            raise wrong("name", f"got {self.name!r}{hint}, allowed: {SCHEDULE_ALLOWED}")
        allowed = ("name", "unit", "warmup", *(("args",) if is_own else _KEYS_OF[self.name]))
        for given in self.model_fields_set:
            default = type(self).model_fields[given].get_default(call_default_factory=True)
            if given not in allowed and getattr(self, given) != default:
                raise wrong(given, f"got {getattr(self, given)!r}, allowed with {self.name}: leave it out")
        if self.name == "step" and not self.at:
            raise wrong("at", "got nothing, allowed: a list of times such as '[30, 60]'")
        if list(self.at) != sorted(set(self.at)):
            raise wrong("at", f"got {list(self.at)}, allowed: ascending numbers")
        if self.length is not None and self.length <= self.warmup:
            raise wrong("length", f"got {self.length:g}, allowed: more than warmup ({self.warmup:g})")
        return self


class OptimizerConfig(Section):
    """How gradients change the weights; names and meanings are those of Keras or `torch.optim`."""

    name: OptimizerName = key(..., "Algorithm.", ", ".join(OPTIMIZERS))
    learning_rate: float = key(..., "Step size.", "a number above 0", gt=0.0)
    momentum: float = key(0.0, "Momentum of sgd and rmsprop.", "0 <= momentum < 1", ge=0.0, lt=1.0)
    weight_decay: float = key(0.0, "Decoupled decay of the weights.", "a number, 0 or more", ge=0.0)
    nesterov: bool = key(False, "Nesterov momentum; sgd only.", "true, false")
    args: Mapping[str, Any] = key(
        {},
        "Further arguments of the algorithm in the DNN's framework, such as `{betas: [0.9, 0.98]}`.",
        ARGS_ALLOWED,
    )
    schedule: Annotated[ScheduleOfRateConfig, BeforeValidator(_from_name)] | None = key(
        None, "How the learning rate changes; null: not at all.", SCHEDULE_ALLOWED
    )
    clip_norm: float | None = key(
        None,
        "Longest gradient over all weights, summed over the group; a longer one is shortened. null: any.",
        "null, or a number above 0",
        gt=0.0,
    )
    no_weight_decay: Annotated[tuple[str, ...], Strict(False)] = key(
        (),
        "Weights without decay: parts of their names such as bias, gamma, beta.",
        "a list of texts such as '[bias, gamma, beta]'",
    )

    @model_validator(mode="after")
    def _check(self) -> OptimizerConfig:
        if self.momentum > 0.0 and self.name not in ("sgd", "rmsprop"):
            raise wrong("momentum", f"got {self.momentum}, allowed: 0 with {self.name} (it has no momentum)")
        if self.nesterov and (self.name != "sgd" or self.momentum == 0.0):
            raise wrong("nesterov", "got true, allowed: false unless name is sgd and momentum is above 0")
        own = [name for name in self.args if name in (*type(self).model_fields, "lr", "params", "name")]
        if own:
            raise wrong(f"args.{own[0]}", f"got {self.args[own[0]]!r}, allowed: the keys beside args for it")
        if self.no_weight_decay and not self.decays:
            raise wrong("no_weight_decay", "got some, allowed: only with weight_decay above 0")
        if not all(self.no_weight_decay):
            raise wrong("no_weight_decay", "got an empty text, allowed: parts of names, at least a character")
        return self

    @property
    def decays(self) -> bool:
        """Whether weights decay."""
        return self.weight_decay > 0.0 or self.name == "adamw"  # which decays by default

    def rate_schedule(self, steps_per_epoch: int, max_epochs: int, *, more_is_better: bool) -> RateSchedule:
        """The schedule as `rate_of_step` takes it, in epochs.

        Args:
            steps_per_epoch: >= 1.
            max_epochs: of the stop rule; the end of a cosine without `length`.
            more_is_better: whether more of the monitored metric is better.
        """
        from hpcbal.policies.learning_rate import RateSchedule

        given = self.schedule
        if given is None:
            return RateSchedule(self.learning_rate)
        unit = 1.0 / steps_per_epoch if given.unit == "steps" else 1.0
        decay: Any = given.name if given.name in _KEYS_OF else "own"
        return RateSchedule(
            peak=self.learning_rate,
            decay=decay,
            warmup=given.warmup * unit,
            at=tuple(time * unit for time in given.at),
            factor=_FACTORS.get(given.name, 1.0) if given.factor is None else given.factor,
            every=given.every * unit,
            length=float(max_epochs) if given.length is None else given.length * unit,
            final=given.final,
            patience=given.patience,
            min_delta=given.min_delta,
            cooldown=given.cooldown,
            more_is_better=more_is_better,
        )
