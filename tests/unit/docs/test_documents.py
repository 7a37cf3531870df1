"""The documents are true: links lead somewhere, the README's configuration is valid."""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from pathlib import Path

import numpy as np
import pytest

import hpcbal.data
from hpcbal.config import EnsembleConfig, load_config
from hpcbal.config.scheduling import settings_of
from hpcbal.data import SampleSpec, dataset, datasets, held_out
from hpcbal.data.operations import OPERATIONS
from hpcbal.errors import INTERRUPTED, ExitCode
from hpcbal.kinds import KINDS
from hpcbal.policies.pruning.rules import Asha

ROOT = Path(__file__).parents[3]
OWN_CODE = ROOT / "docs/your-own-model-and-data.md"
FIRST = ROOT / "docs/first-steps.md"
UNEQUAL = ROOT / "docs/unequal-samples.md"
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("hpcbal/**/*.md")),
]


def anchors_of(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    without_code = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", without_code, flags=re.MULTILINE)
    texts = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in texts}


def broken_links(document: Path) -> list[str]:
    """The relative links of a document that lead to no file, or to no heading of a Markdown file."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text())):
            broken.append(link)
    return broken


def test_links_to_no_file_and_to_no_heading_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# `b.py` and more\n```\n# code\n```\n")
    document = tmp_path / "a.md"
    document.write_text(
        "# A\n[1](b.md#bpy-and-more) [2](b.md#code) [3](c.md) [4](#a) [5](#b) [6](https://x.y/z#q)\n"
    )
    assert broken_links(document) == ["b.md#code", "c.md", "#b"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_to_files_and_headings(document: Path) -> None:
    assert broken_links(document) == []


def missing_pages(text: str) -> list[str]:
    """The pages of docs/ that a text names, with their headings, and that do not exist."""
    missing = []
    for name, anchor, heading in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?(?:, '([^']+)')?", text):
        page = ROOT / name
        anchors = anchors_of(page.read_text()) if page.exists() else set()
        wanted = anchor or heading.lower().replace(" ", "-")
        if not page.exists() or (wanted and wanted not in anchors):
            missing.append(name)
    return missing


def test_pages_that_sentences_of_the_code_name_exist() -> None:
    assert missing_pages("see docs/none.md, docs/batch-jobs.md#none and docs/batch-jobs.md, 'Which MPI'") == [
        "docs/none.md",
        "docs/batch-jobs.md",
    ]
    files = [path for kind in ("py", "sh", "html", "yaml") for path in ROOT.glob(f"hpcbal/**/*.{kind}")]
    assert len(files) > 100
    missing = {path.name: found for path in files if (found := missing_pages(path.read_text()))}
    assert missing == {}


def test_every_file_on_a_journey_exists() -> None:
    text = (ROOT / "docs/architecture.md").read_text().partition("## Seven journeys")[2].partition("\n## ")[0]
    files = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    assert len(set(files)) > 80
    assert [name for name in files if not (ROOT / "hpcbal" / name).exists()] == []


def test_the_architecture_lists_every_room() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| (`.*?`) \|", text, flags=re.MULTILINE)
    listed = {name.rstrip("/") for row in rows for name in re.findall(r"`([a-z_/]+)`", row)}
    below = {path for folder in ("hpcbal", "hpcbal/runtime") for path in (ROOT / folder).iterdir()}
    rooms = {
        path.stem
        for path in below
        if (path / "__init__.py").exists() or (path.suffix == ".py" and not path.stem.startswith("__"))
    }
    assert listed == rooms


def test_the_experiments_have_a_command_for_every_bench() -> None:
    text = (ROOT / "docs/experiments.md").read_text()
    benches = {path.name for path in ROOT.glob("bench/bench_*.py")}
    assert benches == set(re.findall(r"`python bench/(bench_\w+\.py)", text))


def test_configuration_in_the_readme_is_valid(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    path = tmp_path / "shown.yaml"
    path.write_text(shown)
    warnings: list[str] = []
    names = [dnn.name for dnn in load_config(path, warn=warnings.append).dnns]
    assert warnings == []
    assert names == ["densenet-121", "resnet-18-w32", "resnet-18-w64", "resnet-34-w32", "resnet-34-w64"]


@pytest.mark.parametrize(
    ("page", "example"),
    [(OWN_CODE, "waves"), (OWN_CODE, "bars"), (OWN_CODE, "homes"), (UNEQUAL, "walks"), (FIRST, "tables")],
)
def test_pages_show_the_examples_that_are_run(page: Path, example: str) -> None:
    for suffix, kind in ((".py", "python"), (".yaml", "yaml")):
        shown = (ROOT / "docs/examples" / f"{example}{suffix}").read_text()
        assert f"```{kind}\n{shown}```\n" in page.read_text()


def test_the_page_on_unequal_samples_shows_the_emulated_example() -> None:
    shown = (ROOT / "docs/examples/lengths.yaml").read_text()
    assert f"```yaml\n{shown}```\n" in UNEQUAL.read_text()


def test_the_pair_of_arrays_on_the_page_is_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = re.findall(r"```python\n([^`]*\ndef digits\(\):.*?)```", OWN_CODE.read_text(), re.DOTALL)
    (tmp_path / "pairs.py").write_text(shown)
    monkeypatch.syspath_prepend(str(tmp_path))
    pair = held_out.open_dataset("pairs:digits", {})
    assert (len(pair), pair.num_classes, pair.sample_spec) == (1797, 10, SampleSpec.of((8, 8, 1), "float64"))


CSV = "height,width,species\n1.0,2,oak\n3.0,4,fir\n5.0,9,oak\n"


def test_the_page_for_beginners_reads_csv_and_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))
    monkeypatch.chdir(tmp_path)
    Path("flowers.csv").write_text(CSV)
    config = load_config(ROOT / "docs/examples/tables.yaml", check_imports=True)
    assert isinstance(config, EnsembleConfig)
    table = held_out.open_dataset(config.data.dataset, config.data.args)
    samples, labels = zip(*(table.read(i) for i in range(len(table))), strict=True)
    assert (list(labels), table.class_names) == ([1, 0, 1], ["fir", "oak"])
    np.testing.assert_allclose(np.mean(samples, axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose(np.std(samples, axis=0), 1.0, atol=1e-6)
    np.save("x.npy", np.arange(12.0).reshape(3, 2, 2))
    np.save("y.npy", np.array([2, 0, 1]))
    arrays = held_out.open_dataset("tables:Arrays", {"samples": "x.npy", "labels": "y.npy"})
    assert (len(arrays), arrays.num_classes, arrays.read(2)[1]) == (3, 3, 1)
    np.testing.assert_array_equal(arrays.read(2)[0], [[8.0, 9.0], [10.0, 11.0]])


@pytest.mark.parametrize("name", datasets.__all__)
def test_the_page_on_own_code_lists_every_argument_of_our_datasets(name: str) -> None:
    (row,) = [
        line for line in OWN_CODE.read_text().splitlines() if line.startswith(f"| `hpcbal.data:{name}` |")
    ]
    shown = re.findall(r"`(\w+)` \((.*?)\):", row.split("|")[2])
    expected = []
    for parameter in inspect.signature(getattr(hpcbal.data, name)).parameters.values():
        default = parameter.default
        if default is parameter.empty:
            text = "required"
        elif default is None:
            text = "none"
        else:
            text = f"`{'[' + ', '.join(default) + ']' if isinstance(default, tuple | list) else default}`"
        expected.append((parameter.name, text))
    assert shown == expected


def test_the_page_on_own_code_lists_every_member_of_a_dataset() -> None:
    page = OWN_CODE.read_text()
    assert [name for name in dataset.MEMBERS if not re.search(rf"^\| `{name}\b", page, re.MULTILINE)] == []


def test_the_page_on_own_code_lists_every_operation_with_its_arguments() -> None:
    rows = re.findall(r"^\| `(\w+): \{(.*)\}` \|", OWN_CODE.read_text(), re.MULTILINE)
    shown = {name: re.findall(r"(?:^|, )(\w+)", re.sub(r"\[.*?\]", "", args)) for name, args in rows}
    expected = {name: list(kind.model_fields) for name, kind in OPERATIONS.items()}
    assert shown == expected


def test_readme_lists_every_exit_code() -> None:
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert [int(row) for row in rows] == [*map(int, ExitCode), INTERRUPTED]


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


def test_the_example_of_a_sweep_is_valid_and_on_its_page() -> None:
    path = ROOT / "docs/examples/sweep.yaml"
    assert f"```yaml\n{path.read_text()}```\n" in (ROOT / "docs/sweeps.md").read_text()
    config = load_config(path, check_imports=True)
    assert isinstance(config, EnsembleConfig)
    assert len(config.dnns) == 27
    assert settings_of(config, num_positions=1797).prune == Asha(reduction=3, min_epochs=1)


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


def test_the_list_of_what_may_change_in_a_resumed_run_is_the_one_that_the_code_uses() -> None:
    table = (ROOT / "docs/resuming.md").read_text().partition("## What may change")[2]
    keys = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ") and "`" in row]
    listed = [name for cell in keys for name in re.findall(r"`([^`]+)`", cell)]
    rule = KINDS["ensemble"].file.may_change
    assert sorted(listed) == sorted([*rule.keys, *rule.paths, *rule.of_job, rule.may_grow])
