"""Check the shares of a step against the number of GPUs, once it is known."""

from __future__ import annotations

from hpcbal.config.balance import balances_of
from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.errors import ConfigError


def check_shares(config: EnsembleConfig, num_gpus: int) -> None:
    """Reject weights that no GPU could ever use.

    Fewer weights than GPUs in a group are allowed: the weights repeat from the first.

    Args:
        num_gpus: GPUs of the whole cluster, >= 1.

    Raises:
        ConfigError: if a DNN with policy `fixed` has more weights than there are GPUs.
    """
    if not (config.balance.shares or any(dnn.shares for dnn in config.dnns)):
        return
    given: dict[str, int] = {}
    for name, balance in balances_of(config).items():
        if balance.policy.takes_shares:
            key = f"dnns.{name}.shares" if balance.shares_are_own else "balance.shares"
            given[key] = len(balance.shares)
    problems = [
        f"{key}: got {num_weights} weights, allowed: at most {num_gpus}, one for each slot; "
        "remove some weights, or ask for more slots"
        for key, num_weights in given.items()
        if num_weights > num_gpus
    ]
    if problems:
        raise ConfigError(problems)


def check_parts(config: EnsembleConfig, num_gpus: int, num_train: int | None = None) -> None:
    """Reject partitioned data, or steps of it, that would leave a GPU without samples.

    Args:
        num_gpus: GPUs of the whole cluster, >= 1.
        num_train: training samples of the dataset, >= 1; None: not known.

    Raises:
        ConfigError: if the DNN may get more GPUs than a step, or the dataset, has training samples.
    """
    if config.data.access != "partitioned":
        return
    most = min(num_gpus, config.schedule.gpu_limit or num_gpus)
    problems = [
        f"dnns.{dnn.name}.batch_size: {too_few_samples(dnn.batch_size, most)}"
        for dnn in config.dnns
        if dnn.batch_size < most
    ]
    if num_train is not None and num_train < most:
        problems.append(
            f"data.dataset: got {num_train} training samples, allowed: at least {most} with data.access "
            "'partitioned', one for every slot that the DNN may have; add samples, use fewer slots, or set "
            f"schedule.max_gpus_per_dnn to {num_train}"
        )
    if problems:
        raise ConfigError(problems)


def too_few_samples(batch_size: int, num_gpus: int) -> str:
    """Error text for steps of `batch_size` samples, when partitioned data is spread over `num_gpus` GPUs."""
    return (
        f"got {batch_size}, allowed: at least {num_gpus} with data.access 'partitioned': every slot that the "
        "DNN may have needs a sample in each step, else some data is never used; or set "
        f"schedule.max_gpus_per_dnn to {batch_size}"
    )
