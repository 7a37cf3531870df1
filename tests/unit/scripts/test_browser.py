"""The browser for the tests of the report: brought in where that is possible, and named where it is not."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Machine

# A package manager that "installs" a browser, and one that cannot reach its server.
WORKING_APT = (
    'echo "$*" >>calls; [[ $1 == update ]] || { printf x >"$BIN/chromium"; chmod +x "$BIN/chromium"; }'
)
BROKEN_APT = 'echo "Could not resolve deb.debian.org"; exit 100'


def bring(machine: Machine, user: int = 0) -> subprocess.CompletedProcess[str]:
    machine.add_tool("id", f"echo {user}")
    machine.add_tool("timeout", 'shift; exec "$@"')
    return machine.run(
        "bash", "-c", "source scripts/browser.sh; bring_browser log; echo went on", BIN=str(machine.bin)
    )


def test_root_on_debian_gets_the_browser(machine: Machine) -> None:
    machine.add_tool("apt-get", WORKING_APT)
    done = bring(machine)
    assert done.stdout == "went on\n"
    assert "installing Chromium" in done.stderr
    calls = (machine.clone / "calls").read_text().splitlines()
    assert calls[0] == "update"
    assert calls[1].startswith("install -y --no-install-recommends chromium")


@pytest.mark.parametrize("name", ["chromium", "google-chrome"])
def test_a_browser_that_is_there_is_used(machine: Machine, name: str) -> None:
    machine.add_tool(name, "exit 0")
    machine.add_tool("apt-get", WORKING_APT)
    done = bring(machine)
    assert (done.stdout, done.stderr) == ("went on\n", "")
    assert not (machine.clone / "calls").exists()


def test_without_root_one_sentence_tells_what_is_missing(machine: Machine) -> None:
    machine.add_tool("apt-get", WORKING_APT)
    done = bring(machine, user=1000)
    assert done.stdout == "went on\n"
    assert "no Chromium on PATH" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (machine.clone / "calls").exists()


def test_without_a_package_manager_one_sentence_tells_what_is_missing(machine: Machine) -> None:
    done = bring(machine)
    assert done.stdout == "went on\n"
    assert len(done.stderr.splitlines()) == 1


def test_a_failed_installation_is_told_and_the_other_tests_go_on(machine: Machine) -> None:
    machine.add_tool("apt-get", BROKEN_APT)
    done = bring(machine)
    assert done.stdout == "went on\n"
    assert "could not be installed (see log)" in done.stderr
    assert "Could not resolve" in (machine.clone / "log").read_text()
