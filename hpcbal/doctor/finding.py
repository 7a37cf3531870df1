"""One line of the doctor: ok, warning or error, on which nodes, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

OK, WARNING, ERROR = "ok", "warning", "error"
LEVELS = (OK, WARNING, ERROR)
MOST_HOSTS = 4
"""Nodes that a line names; of more it gives the number."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check.

    Attributes:
        check: name of the check.
        level: `ok`, `warning` or `error`.
        text: what was found.
        do: what to do; empty if all is well.
        hosts: the nodes where it was found; empty if it is not about a node.
    """

    check: str
    level: str
    text: str
    do: str = ""
    hosts: tuple[str, ...] = ()

    def on(self, host: str) -> Finding:
        """Return the finding of a node."""
        return replace(self, hosts=(host,))

    def sentence(self) -> str:
        """Return the finding without its level, for messages."""
        where = f"{named(self.hosts)}: " if self.hosts else ""
        return f"{self.check}: {where}{self.text}" + (f"; {self.do}" if self.do else "")


def named(hosts: Sequence[str]) -> str:
    """Return the names of nodes, or how many they are."""
    return ", ".join(hosts) if len(hosts) <= MOST_HOSTS else f"{len(hosts)} nodes ({hosts[0]}, ...)"


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of all nodes, each once with all its nodes, in the order of the checks."""
    hosts: dict[Finding, list[str]] = {}
    for finding in findings:
        hosts.setdefault(replace(finding, hosts=()), []).extend(finding.hosts)
    checks = list(dict.fromkeys(finding.check for finding in hosts))
    found = [replace(finding, hosts=tuple(dict.fromkeys(names))) for finding, names in hosts.items()]
    return sorted(found, key=lambda finding: checks.index(finding.check))  # stable


def text_of(findings: Sequence[Finding], num_nodes: int) -> str:
    """Return the lines that people read.

    Args:
        findings: from `merged`.
        num_nodes: nodes that were asked; with one, no line names it.
    """
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        where = f" ({named(finding.hosts)})" if num_nodes > 1 and 0 < len(finding.hosts) < num_nodes else ""
        lines.append(f"{finding.level:<8} {finding.check:<{width}}  {finding.text}{where}")
        if finding.do:
            lines.append(f"{'':<8} {'':<{width}}  -> {finding.do}")
    counts = {level: sum(finding.level == level for finding in findings) for level in LEVELS}
    lines.append(
        f"{counts[OK]} ok, {counts[WARNING]} warning{'' if counts[WARNING] == 1 else 's'}, "
        f"{counts[ERROR]} error{'' if counts[ERROR] == 1 else 's'}"
    )
    return "\n".join(lines)
