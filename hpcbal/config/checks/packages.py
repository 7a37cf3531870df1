"""Check, without importing them, that the packages that a configuration needs are installed."""

from __future__ import annotations

from importlib.util import find_spec

from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.config.source.nodes import YamlNode

DEFAULT_PREDICTOR = BalanceConfig.model_fields["predictor"].default


def package_problems(root: YamlNode) -> list[str]:
    """Problems of a written-out configuration: a speed predictor in use whose packages are missing."""
    balance = root.get("balance")
    predictor = balance.get("predictor") if balance is not None and balance.is_mapping else None
    if predictor is None or not isinstance(predictor.value, str):
        return []
    if predictor.value == DEFAULT_PREDICTOR or not _predicts_speeds(root):  # the default needs no package
        return []
    from hpcbal.policies.batching.speed import FITTED_BY, FITTED_EXTRAS, PREDICTORS

    missing = [package for package in FITTED_BY.get(predictor.value, ()) if find_spec(package) is None]
    if not missing:
        return []
    return [
        predictor.problem(
            f"got {predictor.value!r}, which needs {' and '.join(missing)}, not installed here; "
            f"pip install 'hpcbal[{FITTED_EXTRAS}]', or take one of {', '.join(sorted(PREDICTORS))}"
        )
    ]


def _predicts_speeds(root: YamlNode) -> bool:
    """Whether any DNN is balanced by a policy that takes a predictor."""
    from hpcbal.policies.batching import BATCHING

    dnns = root.get("dnns")
    entries = dnns.value if dnns is not None and dnns.is_list else []
    policy = root.deepest(("balance", "policy"))[0].value
    own = [dnn.get("balance") for dnn in entries if dnn.is_mapping]
    found = [policy if node is None or node.value is None else node.value for node in own]
    names = [name for name in found if isinstance(name, str) and name in BATCHING]
    return any(BATCHING[name].takes_predictor for name in names)
