"""Check the weights of the policy `fixed` against the GPUs that there are, once these are known."""

from __future__ import annotations

from hpcbal.config.schema import RunConfig
from hpcbal.errors import ConfigError


def check_shares(config: RunConfig, num_gpus: int) -> None:
    """Refuse weights that no GPU could ever have.

    Fewer weights than a group has GPUs are right: they are taken again from the first.

    Args:
        num_gpus: of the whole cluster, >= 1.

    Raises:
        ConfigError: a DNN that is balanced by `fixed` has more weights than there are GPUs.
    """
    given: dict[str, int] = {}
    for dnn in config.dnns:
        if (dnn.balance or config.balance.policy) == "fixed":
            key = f"dnns.{dnn.name}.shares" if dnn.shares else "balance.shares"
            given[key] = len(dnn.shares or config.balance.shares)
    problems = [
        f"{key}: got {num_weights} weights, allowed: at most {num_gpus}, one for each GPU that there is; "
        "leave some out, or ask for more GPUs"
        for key, num_weights in given.items()
        if num_weights > num_gpus
    ]
    if problems:
        raise ConfigError(problems)
