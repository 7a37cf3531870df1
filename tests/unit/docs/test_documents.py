"""What the documents show is true: links lead somewhere, the README's configuration is valid."""

from __future__ import annotations

import io
import re
import tokenize
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


def prose_of(path: Path) -> str:
    """The text of a document; of a module its comments and strings."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(token.string for token in tokens if token.type in (tokenize.COMMENT, tokenize.STRING))


def keys_cited_in(prose: str) -> set[str]:
    """Keys such as FLEET in `[FLEET] Sec. 4`; not the index in `ranks[COUNT]`."""
    return set(re.findall(r"(?<![\w\])])\[([A-Z]{2,})\]", prose)) - {"KEY"}


def test_cited_keys_are_found_in_prose_and_not_in_code(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text('"""Source: [FLEET] Eq. 4; `a[FREE]`, [KEY] Sec. N."""\nx = [LAST]  # as [LBBSP]\n')
    assert keys_cited_in(prose_of(module)) == {"FLEET", "LBBSP"}


def test_the_references_are_the_papers_that_are_cited() -> None:
    references = ROOT / "docs/references.md"
    listed = set(re.findall(r"^\| ([A-Z]+) \|", references.read_text(), flags=re.MULTILINE))
    places = [
        *ROOT.glob("hpcbal/**/*.py"),
        *ROOT.glob("hpcbal/**/*.yaml"),
        *ROOT.glob("bench/*.py"),
        *(document for document in DOCUMENTS if document != references),
    ]
    cited = {key: path.name for path in places for key in keys_cited_in(prose_of(path))}
    assert {key: name for key, name in cited.items() if key not in listed} == {}
    assert listed - cited.keys() == set()
