"""The key that a user meant by one that does not exist: in another section, in another tool, or misspelt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_CUTOFF = 0.75
"""Least similarity of keys: `alpa` is alpha, but `loss` is not slots."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A key that a file may have.

    Attributes:
        shown: how a message names it; empty if there is no name that could be typed.
        full: its dotted path in the configuration.
        is_near: whether it is in the section of the unknown key.
    """

    shown: str
    full: str
    is_near: bool

    @property
    def word(self) -> str:
        """The last part of its path."""
        return self.full.rpartition(".")[2]


_WORDS_BY_KEY: Mapping[str, str] = {
    "learning_rate": "lr eta base_lr init_lr initial_lr initial_learning_rate",
    "max_epochs": "epoch epochs num_epochs n_epochs nepochs nb_epochs max_epoch num_train_epochs",
    "batch_size": "bs batch batchsize minibatch mini_batch mini_batch_size minibatch_size "
    "global_batch_size train_batch_size local_batch_size per_device_train_batch_size",
    "accumulate": "accumulate_grad_batches gradient_accumulation gradient_accumulation_steps accumulation "
    "accumulation_steps accumulate_steps grad_accum grad_accumulation micro_batches num_micro_batches",
    "ema": "ema_decay ema_momentum use_ema model_ema weight_averaging exponential_moving_average swa",
    "mini_batch": "bs batch batchsize minibatch mini_batch_size minibatch_size batch_size global_batch_size",
    "optimizer": "optim opt optimiser",
    "optimizer.schedule": "scheduler lr_scheduler lr_schedule learning_rate_schedule learning_rate_scheduler",
    "optimizer.clip_norm": "clipnorm global_clipnorm grad_clip gradient_clip gradient_clip_val "
    "clip_grad_norm max_grad_norm clip",
    "optimizer.weight_decay": "wd decay l2",
    "stop": "early_stopping earlystopping early_stop earlystop stopping",
    "stop.patience": "early_stopping earlystopping early_stop earlystop stopping early_stopping_patience "
    "es_patience",
    "stop.monitor": "early_stopping_monitor monitor_metric",
    "loss": "loss_fn loss_function criterion",
    "metrics": "metric eval_metric eval_metrics",
    "class_weights": "class_weight",
    "callbacks": "callback",
    "init": "pretrained weights initial_weights pretrained_weights load_weights init_weights",
    "freeze": "frozen freeze_layers frozen_layers trainable",
    "slots.per_node": "gpu gpus ngpus n_gpus num_gpus gpus_per_node devices num_devices n_devices nproc "
    "nproc_per_node ntasks_per_node tasks_per_node slots_per_node",
    "slots.device": "accelerator",
    "profiling.max_slots": "max_gpus",
    "slots.preprocessors_per_node": "workers num_workers n_workers data_workers dataloader_workers "
    "num_data_workers",
    "data.validation_fraction": "val_split validation_split valid_split val_fraction val_size "
    "validation_size val_ratio validation_ratio",
    "data.validation": "val val_data validation_data valid_data val_dataset validation_dataset val_set",
    "data.test": "test_data test_dataset test_set",
    "data.test_fraction": "test_split test_size test_ratio",
    "data.dataset": "train_data train_dataset training_data train_set",
    "data.args.path": "data_dir data_path dataset_path data_root root data_folder train_dir",
    "data.max_samples": "samples num_samples n_samples num_train_samples limit_train_samples subset",
    "preprocessing": "transforms transform augmentation augmentations preprocess data_augmentation",
    "output.dir": "output_dir out_dir outdir output_path save_dir save_path checkpoint_dir ckpt_dir "
    "checkpoint_path log_dir logdir logs default_root_dir work_dir run_dir result_dir results_dir "
    "experiment_dir",
    "checkpoint.interval_s": "save_freq save_every save_interval checkpoint_interval checkpoint_every",
    "checkpoint.keep": "save_best_only save_top_k save_total_limit",
    "walltime": "time time_limit timelimit max_time wall_time max_runtime",
    "seed": "random_seed rng_seed random_state manual_seed global_seed",
    "backend.precision": "fp16 bf16 amp mixed_precision dtype",
    "dnns": "models networks nets dnn",
    "sweeps": "grid search param_grid search_space hyperparameters",
}
"""By the end of a key's path: names that other tools have for it."""

_OTHER_VALUES = {
    "rescale": "normalize",
    "rescaling": "normalize",
    "normalization": "normalize",
    "resizing": "resize",
    "scale": "normalize",
    "acc": "accuracy",
    "f1": "f1_score",
    "flip": "random_flip",
    "crop": "random_crop",
    "rotate": "random_rotation",
    "cross_entropy": "sparse_categorical_crossentropy",
    "crossentropy": "sparse_categorical_crossentropy",
}
"""Names that other tools have for operations, losses and metrics, with ours."""

_WORDS_BY_ADVICE: Mapping[str, str] = {
    "the number of nodes is that of the job: sbatch --nodes, or the host file of mpirun": "nodes nnodes "
    "num_nodes n_nodes ntasks tasks",
    "an option of the job: give it to sbatch or bsub": "account queue qos gres mem cpus_per_task constraint "
    "job_name",
    "if the code of the model has such an argument, give it in args": "dropout layers num_layers units "
    "hidden_size hidden_units filters activation depth width kernel_size input_shape num_classes",
    "if the code of the dataset has such an argument, give it in data.args": "path data_dir data_path "
    "dataset_path data_root root data_folder train_dir",
    "part of a schedule, such as optimizer.schedule: {name: cosine, warmup: 5}": "warmup warmup_epochs "
    "warmup_steps lr_warmup",
    "training samples are shuffled in each pass, with the seed": "shuffle",
    "an option of the command: hpcbal run --log-level": "verbose log_level loglevel",
    "the same command again continues a run": "resume resume_from resume_from_checkpoint",
    "an epoch is one pass over the training samples; data.max_samples takes fewer of them": "steps max_steps "
    "steps_per_epoch",
}
"""By what to do for them: names that are no key of a file."""


def _by_word(words_by_text: Mapping[str, str]) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for text, words in words_by_text.items():
        for word in words.split():
            texts.setdefault(word, []).append(text)
    return texts


_KEYS = _by_word(_WORDS_BY_KEY)
_ADVICE = _by_word(_WORDS_BY_ADVICE)


def meant(
    given: str,
    candidates: Sequence[Candidate],
    *,
    elsewhere: Sequence[Candidate] = (),
    holds_keys: bool = False,
    takes_any_argument: bool = False,
) -> Candidate | str | None:
    """Find the key that a user meant.

    Letters alone only decide between words that are nearly equal, and last.

    Args:
        given: the unknown key, which may have a dot, without its section.
        candidates: keys that exist; of equally good ones the first is taken.
        elsewhere: keys that exist in sections that are optional or in lists; only taken for equal words.
        holds_keys: whether a section was given for it.
        takes_any_argument: whether the section has `args`, and it is not known which ones there are.

    Returns:
        A key; or advice if the word is known, but no key; None if nothing is like it.
    """
    first, _, rest = given.partition(".")
    is_argument = bool(rest) and nearest(first, ["args"]) is not None
    if is_argument:
        candidates = [each for each in candidates if each.shown.startswith("args.")]
    found = _meant(given.rpartition(".")[2].lower().replace("-", "_"), candidates, elsewhere, holds_keys)
    if takes_any_argument and not isinstance(found, Candidate) and (is_argument or not rest):
        return Candidate(f"args.{rest or given}", "", True)
    return found


def _meant(
    given: str, candidates: Sequence[Candidate], elsewhere: Sequence[Candidate], holds_keys: bool
) -> Candidate | str | None:
    argument = next((each for each in candidates if each.is_near and each.shown == f"args.{given}"), None)
    if argument is not None:
        return argument
    renamed = [key for end in _KEYS.get(given, ()) if (key := _first(candidates, end)) is not None]
    if renamed:
        return next((each for each in renamed if _has_keys(each, candidates) == holds_keys), renamed[0])
    if given in _ADVICE:
        return _first(candidates, f"args.{given}") or _ADVICE[given][0]
    near = [each for each in candidates if each.is_near]
    exact = _first(candidates, given) or _first(elsewhere, given)
    if exact is None and given in _OTHER_VALUES:
        exact = _first([*near, *elsewhere], _OTHER_VALUES[given])
    return exact or _like(given, near) or _like(given, candidates)


def nearest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that other tools call `given`, or most like it, in any case; None if none is similar."""
    import difflib  # only needed after an error

    known = list(known)
    given = given.lower()
    renamed = [_OTHER_VALUES.get(given), *(end.rpartition(".")[2] for end in _KEYS.get(given, ()))]
    word = next((each for each in renamed if each in known), None)
    if word is not None:
        return word
    by_lower = {word.lower(): word for word in reversed(known)}
    near = difflib.get_close_matches(given, list(by_lower), n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """` (did you mean 'alpha'?)`, or nothing if no known word is similar."""
    word = nearest(str(given), known)
    return f" (did you mean '{word}'?)" if word is not None else ""


def hint_of(found: Candidate | str | None, otherwise: str = "") -> str:
    """` (did you mean 'alpha'?)`, or the advice, or nothing.

    Args:
        found: from `meant`.
        otherwise: what to say of a key that has no name which could be typed.
    """
    if isinstance(found, Candidate):
        return f" (did you mean '{found.shown}'?)" if found.shown else otherwise
    return f" ({found})" if found else ""


def _first(candidates: Iterable[Candidate], end: str) -> Candidate | None:
    return next((each for each in candidates if f".{each.full}".endswith(f".{end}")), None)


def _has_keys(candidate: Candidate, candidates: Iterable[Candidate]) -> bool:
    return any(each.full.startswith(f"{candidate.full}.") for each in candidates)


def _like(given: str, candidates: Sequence[Candidate]) -> Candidate | None:
    by_word = {each.word: each for each in reversed(candidates)}
    word = nearest(given, by_word, _CUTOFF)
    return None if word is None else by_word[word]
