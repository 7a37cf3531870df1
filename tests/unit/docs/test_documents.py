"""What the documents show is true: links lead somewhere, the README's configuration is valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcbal.config import load_config
from hpcbal.errors import ExitCode

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
    broken = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert broken == []


def test_configuration_in_the_readme_is_valid(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    path = tmp_path / "shown.yaml"
    path.write_text(shown)
    warnings: list[str] = []
    names = [dnn.name for dnn in load_config(path, warn=warnings.append).dnns]
    assert warnings == []
    assert names == ["densenet-121", "resnet-18-w32", "resnet-18-w64", "resnet-34-w32", "resnet-34-w64"]


def test_readme_lists_every_exit_code() -> None:
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert [int(row) for row in rows] == [int(code) for code in ExitCode]


def test_every_cited_paper_is_in_the_references() -> None:
    known = set(re.findall(r"^\| ([A-Z]+) \|", (ROOT / "docs/references.md").read_text(), flags=re.MULTILINE))
    cited = {
        (path.name, key)
        for path in [*ROOT.glob("hpcbal/**/*.py"), *DOCUMENTS]
        for key in re.findall(r"\[([A-Z]+)\] (?:Sec|Eq|Alg|App)", path.read_text())
    }
    assert {key for _, key in cited} >= {"FLEET"}
    assert [pair for pair in sorted(cited) if pair[1] not in known | {"KEY"}] == []
