"""The pages about batch systems: their commands are run, or say that they are not."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hpcbal.cli.main import build_parser, main
from hpcbal.cluster.systems import SYSTEMS
from hpcbal.config.site import SiteConfig, load_site

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "docs/batch-jobs.md", *sorted(ROOT.glob("docs/batch/*.md"))]
CONFIG = """\
name: {name}
defaults: {{optimizer: {{name: sgd, learning_rate: 0.1}}, batch_size: 4, stop: {{max_epochs: 2}}}}
dnns: [{{name: a, model: "hpcbal.models:softmax"}}]
backend: {{name: emulated, rates: {{a: {{1: 10}}}}}}
slots: {{per_node: 2}}
"""
NOT_RUN = ("# not run by a test", "# what it prints")


def blocks(page: Path, kind: str) -> list[str]:
    """Return the blocks of a kind, without fences."""
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    """Return the commands of a page that a test has to run."""
    shown = [block.splitlines() for block in blocks(page, "text")]
    return [line for lines in shown if not lines[0].startswith(NOT_RUN) for line in lines]


@pytest.mark.parametrize(
    ("page", "command"),
    [(page, command) for page in PAGES for command in dict.fromkeys(commands(page))],
    ids=lambda value: getattr(value, "stem", value),
)
def test_commands_on_pages_about_batch_systems_work(
    page: Path, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCBAL_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.setenv("PATH", "")
    for name in ("my", "other"):
        (tmp_path / f"{name}.yaml").write_text(CONFIG.format(name=name))
    program, verb, *words = shlex.split(command)
    assert program == "hpcbal"
    if verb not in ("submit", "validate"):
        build_parser().parse_args([verb, *words])
        return
    system = page.stem if page.stem in SYSTEMS else "slurm"
    if "--write-site" in words:
        assert main([verb, *words, *(() if "--system" in words else ("--system", system))]) == 0
        return
    if verb == "submit":
        (tmp_path / "site.yaml").write_text(f"system: {system}\n")
        words.insert(0, "--dry-run")
    assert main([verb, *words]) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_site_files_on_the_pages_are_valid(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "site.yaml"
    monkeypatch.setenv("HPCBAL_SITE", str(path))
    for block in blocks(page, "yaml"):
        path.write_text(block)
        assert load_site() != SiteConfig()


def test_every_system_has_a_page_with_the_same_parts() -> None:
    for name in SYSTEMS:
        text = (ROOT / "docs" / "batch" / f"{name}.md").read_text()
        headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
        assert headings == ["The first day", "Arrays", "Chains", "When it fails"]
        assert ("was at hand" in text) == (name != "slurm")


def test_the_page_has_every_option_and_every_key_of_the_site_file() -> None:
    text = (ROOT / "docs/batch-jobs.md").read_text()
    (subparsers,) = (action for action in build_parser()._actions if action.dest == "verb")
    options = {
        option
        for action in subparsers.choices["submit"]._actions  # type: ignore[index,union-attr]
        for option in action.option_strings
    }
    shown = {word for word in options if re.search(rf"{word}\b", text)}
    assert options - shown == {"-h", "--help", "-o", "--json"}
    rows = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    assert [key for key in SiteConfig.model_fields if f"`{key}`" not in rows] == []
