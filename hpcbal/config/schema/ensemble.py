"""Every key of an ensemble beyond those that all runs share: `EnsembleConfig` and its sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, Strict, model_validator

from hpcbal.config.schema.dnn import SHARES_ALLOWED, BalanceName, DnnConfig, Shares
from hpcbal.config.schema.held_out import (
    DEFAULT_VALIDATION_FRACTION,
    SECTION_ALLOWED,
    TEST_FRACTION_ALLOWED,
    HeldOutConfig,
    check_held_out,
)
from hpcbal.config.schema.operations import Operation, in_order
from hpcbal.config.schema.prune import (
    ASHA,
    COMMITTEE,
    MEDIAN,
    NO_RULE,
    OpenSearchConfig,
    PruneConfig,
    PruneOfDnns,
    why_no_committee,
)
from hpcbal.config.schema.run import (
    MOST_BYTES,
    MOST_RANKS_PER_NODE,
    SIZE_ALLOWED,
    Bytes,
    CheckpointConfig,
    Count,
    DatasetConfig,
    RunConfig,
    SlotsConfig,
)
from hpcbal.config.schema.section import (
    COUNT_ALLOWED,
    COUNT_OR_NULL_ALLOWED,
    LEAST,
    MOST,
    PATH_ALLOWED,
    PathText,
    Section,
    key,
    not_empty,
    parse_bytes,
    percent_of,
    wrong,
)

if TYPE_CHECKING:
    from hpcbal.policies.flotilla import Delta

MOST_BLOCK_SAMPLES = 10**6
AUTO = "auto"
_SHARE = "0 <= validation_fraction < 1"


def _delta(value: Any) -> Any:
    if isinstance(value, str):
        if value != AUTO:
            percent_of(value)
        return value.replace(" ", "")
    return value


def _some_rate(value: Mapping[int, float]) -> Mapping[int, float]:
    if 1 not in value:
        raise ValueError("no rate on 1 slot")
    return value


def _int_keys(value: Any) -> Any:
    """Convert counts of slots to int: JSON and `--set` have only text as keys."""
    if not isinstance(value, Mapping):
        return value
    rates: dict[Any, Any] = {}
    for given, rate in value.items():
        count = int(given) if isinstance(given, str) and given.isdecimal() and len(given) < 10 else given
        if count in rates:
            slots = "1 slot" if count == 1 else f"{count} slots"
            raise wrong("", f"got the rate on {slots} twice, as {count} and as {given!r}; keep one")
        rates[count] = rate
    return rates


RatesByCount = Annotated[
    Mapping[Count, Annotated[float, Field(ge=LEAST, le=MOST)]],
    BeforeValidator(_int_keys),
    AfterValidator(_some_rate),
]


class DataConfig(DatasetConfig):
    """Where the samples come from."""

    validation_fraction: float = key(
        DEFAULT_VALIDATION_FRACTION,
        "Share of the samples kept for validation; 0: none.",
        _SHARE,
        ge=0.0,
        lt=1.0,
    )
    max_samples: int | None = key(
        None, "Train and validate on this many samples; null: all.", "null or a whole number, 2 or more", ge=2
    )
    max_bad_fraction: float = key(
        0.01,
        "The run stops if more than this share of the samples is broken.",
        "0 <= max_bad_fraction <= 1",
        ge=0,
        le=1,
        may_change=True,
    )
    access: Literal["shared", "partitioned"] = key(
        "shared",
        "shared: one stream of all samples; partitioned: each slot of the one DNN has only its part.",
        "shared, partitioned",
    )
    partition: Literal["random", "contiguous", "by_class"] = key(
        "random",
        "How partitioned data is divided: shuffled, in order, or sorted by class.",
        "random, contiguous, by_class",
    )
    sampling: Literal["random", "balanced"] = key(
        "random",
        "random: each training sample once in an epoch; balanced: each class equally often, so samples of "
        "rare classes repeat.",
        "random, balanced",
    )
    lookahead: int = key(
        1,
        "Batches (of the largest batch size) that are sorted by sample size together and then shuffled; 1: "
        "none, a random order; 50 groups samples by length.",
        COUNT_ALLOWED,
        ge=1,
    )
    max_traversal_gap: float | None = key(
        2.0,
        "Slots more than this many traversals of their part ahead get more samples; null: never.",
        "null or a number above 0",
        gt=0.0,
        may_change=True,
    )
    validation: HeldOutConfig | None = key(
        None,
        "A dataset of its own for validation, instead of validation_fraction.",
        SECTION_ALLOWED,
        may_move="args",
    )
    test: HeldOutConfig | None = key(
        None,
        "A dataset of its own for 'hpcbal evaluate', which no DNN sees before.",
        SECTION_ALLOWED,
        may_change=True,
    )
    test_fraction: float = key(
        0.0,
        "Share of the samples kept for 'hpcbal evaluate', which no DNN sees before; 0: none.",
        TEST_FRACTION_ALLOWED,
        ge=0.0,
        lt=1.0,
    )

    @model_validator(mode="after")
    def _check(self) -> DataConfig:
        check_held_out(self, self.validation, self.validation_fraction, self.test, self.test_fraction)
        return self


class EnsembleCheckpointConfig(CheckpointConfig):
    """How often state is saved."""

    interval_steps: int | None = key(
        None,
        "Also save after this many training steps of a DNN, inside an epoch, too; null: by time alone.",
        COUNT_OR_NULL_ALLOWED,
        ge=1,
    )


class ProfilingConfig(Section):
    """How training rates are measured ([FLEET] App. B.3)."""

    max_batches: int = key(48, "Batches of a profiling run.", COUNT_ALLOWED, ge=1)
    timed_batches: int = key(20, "This many of them, the last ones, are timed.", COUNT_ALLOWED, ge=1)
    max_slots: int | None = key(
        None,
        "Largest number of slots tried; null: as many as [FLEET] App. B.3 asks for.",
        COUNT_OR_NULL_ALLOWED,
        ge=1,
    )
    rates: PathText | None = key(
        None, "A profile.json to use instead of measuring.", f"null or {PATH_ALLOWED}", min_length=1
    )

    @model_validator(mode="after")
    def _check(self) -> ProfilingConfig:
        if self.timed_batches > self.max_batches:
            raise wrong(
                "timed_batches",
                f"got {self.timed_batches}, allowed: at most max_batches ({self.max_batches})",
            )
        return self


class ScheduleConfig(Section):
    """Which DNNs train together, and on how many slots."""

    paradigm: Literal["auto", "global", "local", "homogeneous", "elastic", "independent"] = key(
        "auto",
        "How DNNs are scheduled: flotillas of all waiting DNNs (global), or for the slots that become free "
        "(local); random subsets, one slot each (homogeneous); each at its own pace, on more slots as "
        "others end (elastic) or on one slot to its end (independent); "
        "whichever is predicted to be fastest (auto).",
        "auto, global, local, homogeneous, elastic, independent",
    )
    delta: Annotated[Annotated[float, Field(ge=0.0, le=MOST)] | str, BeforeValidator(_delta)] = key(
        AUTO,
        "DNNs train together if their rates differ by at most this: samples/s, or a share of the "
        "reference rate as text such as 15%; auto: whatever is predicted to be fastest.",
        "auto, samples/s, 0 or more, or text such as '15%'",
    )
    alpha: Annotated[float, Field(gt=0.0, le=1.0)] | Literal["auto"] = key(
        AUTO,
        "A round ends when fewer than alpha times the slots of its flotilla are busy; auto: chosen together "
        "with delta or the paradigm, or 0.8 where both are given.",
        "auto, or 0 < alpha <= 1",
    )
    max_slots_per_dnn: Count | Literal["auto"] | None = key(
        "auto",
        "No DNN gets more slots than this; null: no limit; auto: 1 where slots are cores that trainers and "
        "preprocessors share, else no limit.",
        "auto, null or a whole number, 1 or more",
    )
    profiling: ProfilingConfig = key(
        None, "How rates are measured.", "keys of profiling", default_factory=ProfilingConfig
    )

    def alpha_rule(self) -> float | None:
        """`alpha` as a number; None: auto."""
        return None if isinstance(self.alpha, str) else self.alpha

    def delta_rule(self) -> Delta | None:
        """`delta` as the flotilla policy takes it; None: auto."""
        from hpcbal.policies.flotilla import Delta

        if self.delta == AUTO:
            return None
        if isinstance(self.delta, str):
            return Delta(absolute=None, relative=percent_of(self.delta))
        return Delta(absolute=float(self.delta), relative=None)


class EnsembleSlotsConfig(SlotsConfig):
    """How the ranks of a node are used."""

    preprocessors_per_node: int = key(
        1, "Preprocessing ranks per node to ask for.", COUNT_ALLOWED, ge=1, le=MOST_RANKS_PER_NODE
    )
    per_gpu: int = key(
        1,
        "Slots that share a GPU, for networks that do not fill one; above 1, a DNN gets one slot.",
        COUNT_ALLOWED,
        ge=1,
        le=MOST_RANKS_PER_NODE,
    )


class WorkerConfig(Section):
    """How one emulated slot differs from others: t(x) = max(floor_s, launch_s + x / (rate * speed))."""

    speed: float = key(1.0, "Factor on the rate on 1 slot.", "a number above 0", gt=0.0)
    launch_s: float = key(0.0, "Fixed time of every batch.", "seconds, 0 or more", ge=0.0)
    floor_s: float = key(0.0, "Shortest time of a batch.", "seconds, 0 or more", ge=0.0)


class BackendConfig(Section):
    """The backend that computes the steps."""

    name: Literal["auto", "tensorflow", "torch", "emulated"] = key(
        "auto",
        "auto trains each DNN with its own framework, tensorflow and torch train all with one; emulated "
        "takes the time from `rates`.",
        "auto, tensorflow, torch, emulated",
    )
    collective: Literal["auto", "torch", "horovod", "mpi"] = key(
        "auto",
        "What sums gradients; auto: torch (torch.distributed) for PyTorch on GPUs, else horovod if it is "
        "installed and works, else mpi; with torch, mpi sums those of TensorFlow; emulated: always mpi.",
        "auto, torch, horovod, mpi",
        may_change=True,
    )
    precision: Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"] = key(
        "float32",
        "Type of weights and gradients; mixed: these are float32, and layers compute in 16 bits.",
        "float32, float64, mixed_float16, mixed_bfloat16",
    )

    @model_validator(mode="after")
    def _check(self) -> BackendConfig:
        if self.name == "emulated" and self.precision.startswith("mixed"):
            raise wrong("precision", f"got {self.precision}, allowed with emulated: float32, float64")
        return self

    rates: Mapping[str, RatesByCount] = key(
        {},
        "For emulated: samples/s by number of slots, by DNN; missing counts follow [FLEET] Eq. 5.",
        "{dnn name: {number of slots: samples/s above 0}}, with the rate on 1 slot at least",
        may_change=True,
    )
    workers: Annotated[tuple[WorkerConfig, ...], Strict(False)] = key(
        (),
        "For emulated: slots of different speed, by number, repeated from the first; empty: all alike.",
        "a list of workers such as '{speed: 0.5}'",
        may_change=True,
    )

    @property
    def is_emulated(self) -> bool:
        """Whether nothing is trained on real devices."""
        return self.name == "emulated"

    @property
    def effective_collective(self) -> Literal["auto", "torch", "horovod", "mpi"]:
        """`collective`, or mpi if the backend supports no other."""
        return "mpi" if self.name == "emulated" else self.collective


class BalanceConfig(Section):
    """How a step's samples are split over the slots of its DNN."""

    policy: BalanceName = key(
        "even",
        "even: the same for all; fitted: by curves learnt while training; lb-bsp-gpu, lb-bsp-cpu: Alg. 2 and "
        "Alg. 1 of [LBBSP]; fixed: by the weights in `shares`.",
        "even, fitted, lb-bsp-gpu, lb-bsp-cpu, fixed",
    )
    shares: Shares = key(
        (),
        "For fixed: weights of a DNN's slots, repeated from the first; at most as many as slots.",
        SHARES_ALLOWED,
    )
    predictor: Literal["memoryless", "narx"] = key(
        "memoryless",
        "How lb-bsp-cpu predicts speeds. memoryless: as in the last step; narx: by networks that are fitted "
        "to speeds, CPU and memory while training.",
        "memoryless, narx",
    )
    first_fit: int = key(500, "Steps of a group before its first model is fitted.", COUNT_ALLOWED, ge=1)
    refit_every: int = key(200, "Steps from one fit to the next.", COUNT_ALLOWED, ge=1)
    max_samples_per_slot: int | None = key(
        None,
        "Most samples of a step per slot, unless an even share is more; null: no limit.",
        COUNT_OR_NULL_ALLOWED,
        ge=1,
    )
    samples: Literal["within-batch", "in-order", "chronica"] = key(
        "within-batch",
        "Who takes which samples of a step if they differ in size. within-batch: all slots get equally long "
        "work; in-order: each slot its number of neighbours in the order of the pass; chronica, "
        "with partitioned data: each slot chooses from its part (Alg. 2 and 3 of [CHRONICA]).",
        "within-batch, in-order, chronica",
        may_change=False,
    )
    cost: Literal["padded", "sum"] = key(
        "padded",
        "The work of a share. padded: its number of samples times the longest; sum: the sum of its sizes.",
        "padded, sum",
    )
    max_work_per_slot: float | None = key(
        None,
        "Most work of a step per slot, in the unit of the sizes; null: no limit.",
        "null or a number above 0",
        gt=0.0,
    )
    gradient_weights: Literal["samples", "size"] = key(
        "samples",
        "What a slot's mean gradient counts in a step: its number of samples, or the sum of their sizes "
        "([CHRONICA] Eq. 7).",
        "samples, size",
        may_change=False,
    )
    regroup: bool = key(
        True,
        "Whether a DNN drops a slot if fitted, lb-bsp-cpu or lb-bsp-gpu finds it faster without.",
        "true, false",
    )


def _parse_cache(value: Any) -> Any:
    return value if value == AUTO else parse_bytes(value)


CacheBytes = Annotated[
    Annotated[int, Field(ge=0, le=MOST_BYTES)] | Literal["auto"],
    BeforeValidator(_parse_cache, json_schema_input_type=int | str),
]


class DataplaneConfig(Section):
    """The shared stream of preprocessed samples."""

    ring_bytes: Bytes = key(
        2**28, "Memory per node for preprocessed samples.", SIZE_ALLOWED, gt=0, le=MOST_BYTES, may_change=True
    )
    cache_bytes: CacheBytes = key(
        AUTO,
        "Memory per node for samples as they are before the first random operation, from one pass to the "
        "next; 0: none; auto: for encoded images, as much as they need, and at most half of what is left.",
        "auto, 0, bytes as a whole number, or text such as 4GiB",
        may_change=True,
    )
    block_samples: int = key(
        64, "Samples per block, the unit of transfer.", COUNT_ALLOWED, ge=1, le=MOST_BLOCK_SAMPLES
    )
    max_sample_bytes: Annotated[int | None, BeforeValidator(parse_bytes)] = key(
        None,
        "Largest preprocessed sample; null: determined from the data.",
        f"null, or {SIZE_ALLOWED}",
        gt=0,
        le=MOST_BYTES,
    )
    on_device: bool = key(
        True,
        "Normalize on the device that trains, so that samples travel as bytes; false: on preprocessors.",
        "true or false",
        may_change=True,
    )


class EnsembleConfig(RunConfig):
    """An ensemble of DNNs: frozen, picklable."""

    file_only_keys: ClassVar[tuple[str, ...]] = ("defaults", "sweeps")

    kind: Literal["ensemble"] = key("ensemble", "Kind of the run.", "ensemble")
    slots: EnsembleSlotsConfig = key(
        None, "How ranks are used.", "keys of slots", default_factory=EnsembleSlotsConfig, may_change=True
    )
    checkpoint: EnsembleCheckpointConfig = key(
        None,
        "How often state is saved.",
        "keys of checkpoint",
        default_factory=EnsembleCheckpointConfig,
        may_change=True,
    )
    data: DataConfig = key(
        None, "Where the samples come from.", "keys of data", default_factory=DataConfig, may_move="args"
    )
    preprocessing: Annotated[tuple[Operation, ...], Strict(False), AfterValidator(in_order)] = key(
        (),
        "Operations on every sample, in order.",
        "a list of operations such as 'resize: {height: 8, width: 8}'",
    )
    dnns: Annotated[tuple[DnnConfig, ...], Strict(False), AfterValidator(not_empty)] = key(
        ..., "The networks to train.", "a list of at least one DNN"
    )
    schedule: ScheduleConfig = key(
        None,
        "Which DNNs train together.",
        "keys of schedule",
        default_factory=ScheduleConfig,
        may_change=True,
    )
    backend: BackendConfig = key(
        None, "What computes the steps.", "keys of backend", default_factory=BackendConfig
    )
    balance: BalanceConfig = key(
        None, "How steps are split.", "keys of balance", default_factory=BalanceConfig, may_change=True
    )
    dataplane: DataplaneConfig = key(
        None, "The shared stream.", "keys of dataplane", default_factory=DataplaneConfig
    )
    searches: Annotated[tuple[OpenSearchConfig, ...], Strict(False)] = key(
        (),
        "Sweeps whose later DNNs are proposed while the run goes on; `sweeps` with sampler tpe fill it.",
        "a list of searches",
        may_change=True,
    )
    prune: PruneOfDnns = key(
        None, "Which DNNs stop early.", "keys of prune", default_factory=PruneConfig, may_change=True
    )

    @property
    def num_folds(self) -> int:
        """Number of folds of the training samples; 0: none."""
        return max((dnn.k_fold or 0 for dnn in self.dnns), default=0)

    @property
    def slot_limit(self) -> int | None:
        """Most slots of a DNN, if the file says it; what `auto` means is known when ranks have started."""
        if self.slots.per_gpu > 1 and self.slots.device != "cpu" and not self.backend.is_emulated:
            return 1
        limit = self.schedule.max_slots_per_dnn
        return limit if isinstance(limit, int) else None

    @property
    def combined(self) -> tuple[str, tuple[DnnConfig, ...]]:
        """The key that makes rank 0 combine predictions, and the DNNs that predict; empty if none."""
        if self.prune.rule == COMMITTEE:
            return "prune.rule", tuple(dnn for dnn in self.dnns if self.prune.covers(dnn.name))
        if any(each.search.purpose == COMMITTEE for each in self.searches):
            return "search.for", self.dnns
        return "", ()

    @model_validator(mode="after")
    def _check_members(self) -> EnsembleConfig:
        limit, shared = self.schedule.max_slots_per_dnn, self.slots.per_gpu
        if shared > 1 and (limit not in ("auto", 1) or self.data.access == "partitioned"):
            shown = "null" if limit is None else limit
            what = f"schedule.max_slots_per_dnn {shown}" if limit not in ("auto", 1) else "partitioned data"
            raise wrong(
                "slots.per_gpu",
                f"got {shared} beside {what}, allowed: 1, because ranks of one DNN do not share a GPU",
            )
        numbers = sorted({dnn.k_fold for dnn in self.dnns if dnn.k_fold is not None})
        if len(numbers) > 1:
            raise wrong(
                "dnns",
                f"got k_fold {' and '.join(map(str, numbers))}, allowed: one number of folds, because all "
                "DNNs share one stream of samples; use a run for each",
            )
        refused = {
            "access": (self.data.access, "shared"),
            "sampling": (self.data.sampling, "random"),
            "lookahead": (self.data.lookahead, 1),
        }
        for name, (given, allowed) in refused.items():
            if numbers and given != allowed:
                raise wrong("data", f"got {name}: {given}, allowed with k_fold: {allowed}")
        if numbers and self.prune.rule == COMMITTEE:
            raise wrong(
                "prune.rule",
                f"got {COMMITTEE}, allowed with k_fold: {NO_RULE}, {ASHA}, {MEDIAN}, because members of "
                "folds predict no common validation samples",
            )
        if self.searches and self.prune.rule == COMMITTEE:
            raise wrong(
                "prune.rule",
                f"got {COMMITTEE}, allowed with search.sampler: tpe: {NO_RULE}, {ASHA}, {MEDIAN}, because "
                "DNNs that are still to be proposed would hold up the others",
            )
        key_of_search, combined = self.combined
        if key_of_search == "search.for" and (problem := why_no_committee(combined)):
            raise wrong("searches", f"search.for: {problem}; use for: best, or give the others their own run")
        if self.searches and self.schedule.profiling.rates is not None:
            raise wrong(
                "schedule.profiling.rates",
                "got a file, allowed with search.sampler: tpe: null, because it lacks DNNs that are still to "
                "be proposed",
            )
        if numbers and self.searches:
            raise wrong(
                "searches", "got search.sampler: tpe, allowed with k_fold: random, which draws all at once"
            )
        return self

    @property
    def jobs_by_name(self) -> Mapping[str, DnnConfig]:
        """The DNNs of the run."""
        return {dnn.name: dnn for dnn in self.dnns}

    @property
    def computed_by(self) -> str:
        return self.backend.name
