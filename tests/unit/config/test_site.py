"""The site file: checked like a configuration, and a first one with what is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.cluster.systems import SYSTEMS
from hpcbal.cluster.systems.job import Command, Done
from hpcbal.config.site import (
    SiteConfig,
    check_launcher,
    check_venv,
    load_site,
    new_site_file,
    site_file,
    write_site,
)
from hpcbal.errors import ConfigError, InputError, OutputError


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPCBAL_SITE", str(tmp_path / "of" / "mine" / "site.yaml"))
    (tmp_path / "of" / "mine").mkdir(parents=True)
    return site_file()


def test_without_a_file_every_key_has_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCBAL_SITE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert site_file() == tmp_path / ".config/hpcbal/site.yaml"
    assert load_site() == SiteConfig()
    monkeypatch.setenv("HPCBAL_SITE", str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file, but HPCBAL_SITE names it; write a"):
        load_site()


@pytest.mark.parametrize("text", ["", "# account: mine\n", "{}"])
def test_in_an_empty_file_every_key_has_its_default(path: Path, text: str) -> None:
    path.write_text(text)
    assert load_site() == SiteConfig()


def test_a_file_says_what_job_scripts_hold(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(
        "account: proj\npartition: gpu\nmodules: [gcc/13]\ncontainer: [apptainer, exec, a.sif]\n"
        "launcher: mpirun\nlauncher_options: [--mca, pml, ucx]\noptions: [--qos=low]\nbefore: ['x=1']\n"
    )
    habits = load_site().habits("/venv", ("--qos=high",))
    assert (habits.account, habits.partition, habits.modules) == ("proj", "gpu", ("gcc/13",))
    assert habits.options == ("--qos=low", "--qos=high")
    assert habits.venv == "", "the container has the environment"
    assert SiteConfig().habits("/venv", ()).venv == "/venv"
    monkeypatch.setenv("HOME", "/home/me")
    assert SiteConfig(venv="~/env").habits("/venv", ()).venv == "/home/me/env"
    assert SiteConfig(container=("apptainer", "~/a.sif")).habits("", ()).container[-1] == "/home/me/a.sif"


@pytest.mark.parametrize("line", ["container: ['']", "modules: [' ']", "options: ['']", "venv: env"])
def test_empty_words_and_relative_environments_are_refused(path: Path, line: str) -> None:
    path.write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=rf"site\.yaml:1: {line.partition(':')[0]}\S*: got .*, allowed: "):
        load_site()


def test_an_environment_that_is_not_there_is_refused(path: Path, tmp_path: Path) -> None:
    site = SiteConfig(venv=str(tmp_path))
    with pytest.raises(InputError, match=r"bin/hpcbal is not there, allowed: an environment that scripts/"):
        check_venv(site)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/hpcbal").touch()
    check_venv(site)


def test_all_problems_are_shown_with_their_lines(path: Path) -> None:
    path.write_text("system: slrum\ngpus_per_nodes: 4\npartition: 'a\"b'\nmodules: gcc\ngpus_per_node: -1\n")
    with pytest.raises(ConfigError) as error:
        load_site()
    shown = [str(problem).replace(str(path), "site.yaml") for problem in error.value.problems]
    assert (
        shown[0]
        == "site.yaml:1: system: got 'slrum', allowed: auto, slurm, pbs, lsf or flux (did you mean 'slurm'?)"
    )
    assert shown[1].startswith(
        "site.yaml:2: gpus_per_nodes: unknown key (did you mean 'gpus_per_node'?), allowed: system, "
    )
    assert shown[2:] == [
        "site.yaml:3: partition: got 'a\"b', allowed: text without quotes, backslashes and $",
        "site.yaml:4: modules: got 'gcc', allowed: a list of names",
        "site.yaml:5: gpus_per_node: got -1, allowed: null or a whole number, 0 or more",
    ]


def test_a_list_is_told_which_keys_a_site_has(path: Path) -> None:
    path.write_text("- account\n")
    with pytest.raises(ConfigError, match="allowed: a mapping of keys such as account, partition"):
        load_site()


def test_a_launcher_of_another_system_is_refused() -> None:
    check_launcher(SiteConfig(launcher="jsrun"), "lsf")
    with pytest.raises(InputError, match="launcher: got 'jsrun', allowed with slurm: srun, mpirun"):
        check_launcher(SiteConfig(launcher="jsrun"), "slurm")


def test_a_first_file_has_what_was_found_and_is_valid(path: Path) -> None:
    def run(command: Command) -> Done:
        if command.words[0] == "sinfo":
            return Done(0, "debug*|48|gpu:4\n", "")
        return Done(0, "", "MPI plugin types are...\n\tcray_shasta\n\tpmi2\n")

    assert write_site(SYSTEMS["slurm"], {"LOADEDMODULES": "gcc/13:openmpi/5"}, run) == path
    text = path.read_text()
    assert '\nmodules: ["gcc/13", "openmpi/5"]\n' in text
    assert '\n# account: ""\n' in text
    found = load_site()
    assert (found.system, found.partition, found.cores_per_node, found.gpus_per_node) == (
        "slurm",
        "debug",
        48,
        4,
    )
    assert found.launcher == "mpirun", "because srun does not list pmix"
    assert new_site_file(found) == text
    with pytest.raises(OutputError, match="is there already, and is not overwritten"):
        write_site(SYSTEMS["slurm"], {}, run)
    assert path.read_text() == text


def test_a_first_file_can_be_made_where_the_system_answers_nothing(path: Path) -> None:
    for name, system in SYSTEMS.items():
        path.unlink(missing_ok=True)
        write_site(system, {}, lambda command: Done(127, "", "no such command"))
        assert load_site() == SiteConfig(system=name)


def test_a_file_that_cannot_be_written_is_an_error_for_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HPCBAL_SITE", str(tmp_path / "file" / "site.yaml"))
    with pytest.raises(OutputError, match="cannot write"):
        write_site(SYSTEMS["flux"], {}, lambda command: Done(127, "", ""))
