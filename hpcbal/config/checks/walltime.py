"""Warn of a walltime that may be over before a run has trained anything."""

from __future__ import annotations

from hpcbal.config.schema.run import RunConfig
from hpcbal.config.source.nodes import YamlNode

SHORT_S = 60.0
"""Starting ranks, loading TensorFlow and building networks takes seconds to about a minute."""


def walltime_warnings(config: RunConfig, root: YamlNode) -> list[str]:
    """A line in the form of problems if the walltime is short.

    Args:
        config: the validated configuration.
        root: the written-out configuration that was validated.
    """
    if config.walltime is None or config.walltime >= SHORT_S:
        return []
    node, _ = root.deepest(("walltime",))
    return [
        node.problem(
            f"got {config.walltime:g} s, and the last quarter is kept for saving; a start may need longer "
            "than the rest, and then trains next to nothing: give the time limit of the job"
        )
    ]
