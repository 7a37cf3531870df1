"""Warn of weights to start from that are not there yet."""

from __future__ import annotations

from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.schema.initial import InitConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.errors import InputError


def initial_warnings(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """A line in the form of problems for each DNN whose `init` names nothing that is there.

    Only a warning: the file may be made before the run starts, and a DNN with a checkpoint needs it no more.

    Args:
        config: the validated configuration.
        root: the written-out configuration that was validated.
    """
    lines = []
    for index, dnn in enumerate(config.dnns):
        missing = None if dnn.init is None else _missing(dnn.init)
        if missing is not None:
            node, _ = root.deepest(("dnns", index, "init"))
            lines.append(node.problem(missing))
    return list(dict.fromkeys(lines))


def _missing(init: InitConfig) -> str | None:
    try:
        path = init.path
    except InputError as error:  # on the machines of the run the variable may be set
        return str(error)
    if init.is_keras_file:
        return None if path.is_file() else f"got {init.source}, but there is no such file"
    if not (path / "config.yaml").is_file():
        return f"got {init.source}, but that is not the output directory of a run"
    assert init.dnn is not None, "checked with the configuration"
    if not any((path / "dnns" / init.dnn).glob("*.h5")):
        return f"got {init.source}:{init.dnn}, but that run has no weights of {init.dnn} yet"
    return None
