"""Stand-ins for PBS, LSF and Flux on one machine: they refuse what the manuals do not name.

A stand-in runs the scripts that it is given, one process for each job, with the variables that the manual
names. It shows that our scripts and commands fit each other and the manuals as we read them; it shows nothing
about a real batch system.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

COMMANDS = ("qsub", "qstat", "bsub", "bjobs", "flux", "jsrun")
PBS_RESOURCES = {"ncpus", "mpiprocs", "ngpus"}


class Refused(SystemExit):
    """An option or a value that the manual does not name."""

    def __init__(self, text: str) -> None:
        print(text, file=sys.stderr)
        super().__init__(2)


def install(folder: Path, state: Path) -> dict[str, str]:
    """Write the commands into a folder, and return the variables that they need."""
    folder.mkdir(parents=True)
    state.mkdir()
    for name in COMMANDS:
        path = folder / name
        path.write_text(f'#!/bin/bash\nexec {sys.executable} {Path(__file__).resolve()} {name} "$@"\n')
        path.chmod(0o755)
    return {"STAND_IN": str(state), "PATH": f"{folder}:{os.environ['PATH']}"}


def parser(names: str, flags: str = "") -> argparse.ArgumentParser:
    """Make a parser that knows these options, with values unless they are among `flags`."""
    made = argparse.ArgumentParser(allow_abbrev=False, add_help=False, prefix_chars="-")
    for option in names.split():
        name = option.lstrip("-").replace("-", "_")
        if option in flags.split():
            made.add_argument(option, dest=name, action="store_true")
        else:
            made.add_argument(option, dest=name, action="append", default=[])
    return made


QSUB = parser("-A -j -J -l -N -o -q -r -v -W")
BSUB = parser("-J -n -nnodes -R -gpu -x -W -wa -wt -Q -r -rn -o -P -q -w", flags="-x -r -rn")
FLUX_BATCH = parser(
    "--job-name --nodes --exclusive --nslots --cores-per-slot --gpus-per-slot --time-limit --output --bank "
    "--queue --dependency",
    flags="--exclusive",
)
FLUX_RUN = parser("--nodes --tasks-per-node --exclusive --setopt", flags="--exclusive")
JSRUN = parser("--nrs --rs_per_host --tasks_per_rs --cpu_per_rs --gpu_per_rs --bind")


def directives(text: str, sentinel: str) -> list[str]:
    """Return the words of the options at the head of a script."""
    words: list[str] = []
    for line in text.splitlines()[1:]:
        if line.startswith(sentinel):
            words += shlex.split(line.removeprefix(sentinel))
        elif line and not line.startswith("#"):
            break
    return words


def matching(pattern: str, value: str) -> str:
    """Return a value that has the form of the manual."""
    if re.fullmatch(pattern, value) is None:
        raise Refused(f"illegal value {value!r}")
    return value


BASE_58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def flux_name(number: int) -> str:
    """Return an identifier of Flux, in base 58."""
    digits = ""
    while number:
        number, digit = divmod(number, 58)
        digits = BASE_58[digit] + digits
    return f"f{digits}"


def flux_number(name: str) -> str:
    """Return the number of a job of Flux."""
    number = 0
    for digit in name.removeprefix("f"):
        number = 58 * number + BASE_58.index(digit)
    return str(number)


class Queue:
    """The jobs, as files in a folder."""

    def __init__(self) -> None:
        self.folder = Path(os.environ["STAND_IN"])

    def add(
        self, script: str, environ: dict[str, str], after: list[str], *, log: str, again: list[str]
    ) -> str:
        """Start a process that runs a script when the jobs before it have ended."""
        number = str(1 + len([*self.folder.glob("*.job")]))
        for task in environ.pop("TASKS", "").split(",") if environ.get("TASKS") else [""]:
            key = f"{number}.{task}" if task else number
            (self.folder / f"{key}.sh").write_text(script)
            job = {"key": key, "environ": environ, "after": after, "task": task, "log": log, "again": again}
            job |= {"system": sys.argv[1], "cwd": os.getcwd()}
            (self.folder / f"{key}.job").write_text(json.dumps(job))
            subprocess.Popen(
                [sys.executable, __file__, "_run", key],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return number

    def code(self, key: str) -> int | None:
        """Return the exit code of a job; None while it has none."""
        path = self.folder / f"{key}.code"
        return int(path.read_text() or 0) if path.exists() else None

    def keys(self, number: str) -> list[str]:
        """Return the names of a job, or of the tasks of an array."""
        return [path.stem for path in self.folder.glob("*.job") if path.stem.partition(".")[0] == number]


def run(key: str) -> None:
    """Run one job to its end, and again if its exit code asks for it."""
    queue = Queue()
    job = json.loads((queue.folder / f"{key}.job").read_text())
    while any(queue.code(each) is None for number in job["after"] for each in queue.keys(number)):
        time.sleep(0.1)
    environ = {**os.environ, **job["environ"]}
    number, task = key.partition(".")[0], job["task"]
    if job["system"] == "qsub":
        # PBS gives a job only what is asked for (-v), and some variables of its own.
        environ = {name: os.environ[name] for name in ("PATH", "HOME", "STAND_IN") if name in os.environ}
        environ |= job["environ"] | {
            "PBS_JOBID": f"{number}[{task}].pbs" if task else f"{number}.pbs",
            "PBS_O_WORKDIR": job["cwd"],
            "PBS_NODEFILE": str(queue.folder / "nodes"),
        }
        environ |= {"PBS_ARRAY_INDEX": task} if task else {}
        (queue.folder / "nodes").write_text("localhost slots=16\n")
    elif job["system"] == "bsub":
        environ |= {"LSB_JOBID": number, "LSB_JOBINDEX": task or "0", "LS_SUBCWD": job["cwd"]}
    else:
        environ |= {"FLUX_ENCLOSING_ID": flux_name(int(number))}
    log = Path(job["cwd"], job["log"] or "/dev/null")
    while True:
        with log.open("ab") as file:
            started = Path(os.environ.get("HOME", "/")) if job["system"] == "qsub" else Path(job["cwd"])
            script = [str(queue.folder / f"{key}.sh")]
            process = subprocess.Popen(
                ["bash", *script],
                cwd=started,
                env=environ,
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
            )
        (queue.folder / f"{key}.pid").write_text(str(process.pid))
        code = process.wait()
        if str(code) not in job["again"]:
            break
    temporary = queue.folder / f"{key}.tmp"
    temporary.write_text(str(code))
    temporary.rename(queue.folder / f"{key}.code")


def qsub(words: list[str]) -> None:
    """Submit to what is no PBS."""
    file = words[-1]
    text = Path(file).read_text()
    found = QSUB.parse_args([*directives(text, "#PBS "), *words[:-1]])
    for resources in found.l:
        name, _, value = resources.partition("=")
        if name == "select":
            matching(r"\d+(:\w+=\d+)+", value)
            if {part.partition("=")[0] for part in value.split(":")[1:]} - PBS_RESOURCES:
                raise Refused(f"unknown resource in {value!r}")
        elif name == "place":
            matching("(free|pack|scatter|vscatter)(:(excl|shared|exclhost))?", value)
        elif name == "walltime":
            matching(r"\d+:\d\d:\d\d", value)
        else:
            raise Refused(f"unknown resource {name!r}")
    matching("[yn]", found.r[-1])
    matching("oe|eo|n", found.j[-1])
    matching(r"[A-Za-z0-9][\w.+-]*", found.N[-1])
    after: list[str] = []
    for each in found.W:
        depend = matching(r"depend=afterany(:\d+(\[\])?\.pbs)+", each)
        after += [re.sub(r"\D", "", part) for part in depend.split(":")[1:]]
    environ: dict[str, str] = {}
    for each in (part for given in found.v for part in given.split(",")):
        name, equals, value = each.partition("=")
        environ[name] = value if equals else os.environ[name]
    if found.J:
        first, last = matching(r"\d+-\d+", found.J[-1]).split("-")
        if found.r[-1] == "n":
            raise Refused("qsub: cannot submit non-rerunable Array Job")
        if int(first) >= int(last):
            raise Refused("qsub: illegal -J value")
        environ["TASKS"] = ",".join(str(task) for task in range(int(first), int(last) + 1))
    log = f"{found.o[-1]}pbs.OU" if found.o else ""
    number = Queue().add(text, environ, after, log=log, again=[])
    print(f"Note: a hook of the site may print more\n{number}{'[]' if found.J else ''}.pbs")


def qstat(words: list[str]) -> None:
    """Show jobs of what is no PBS."""
    queue = Queue()
    if words[:1] != ["-f"] and words[:2] != ["-x", "-f"]:
        raise Refused(f"qstat: illegal options {words}")
    for name in words[words.index("-f") + 1 :]:
        key = name.partition(".")[0].replace("[", ".").rstrip("].")
        code = queue.code(key)
        job = queue.folder / f"{key}.job"
        if not job.exists():
            raise Refused(f"qstat: Unknown Job Id {name}")
        when = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(job.stat().st_mtime))
        state = "R" if code is None else f"F\n    Exit_status = {code}"
        print(f"Job Id: {name}\n    job_state = {state}\n    ctime = {when}\n    stime = {when}")
        print("    Resource_List.walltime = 00:05:00\n")


def bsub(words: list[str]) -> None:
    """Submit to what is no LSF."""
    text = sys.stdin.read()
    found = BSUB.parse_args([*directives(text, "#BSUB "), *words])
    matching(r"\d+:\d\d", found.W[-1])
    matching("USR2", (found.wa or ["USR2"])[-1])
    after = [matching(r"ended\(\d+\)", part)[6:-1] for each in found.w for part in each.split(" && ")]
    name = re.fullmatch(r"([\w.-]+)(\[1-(\d+)\])?", found.J[-1])
    if name is None or not (found.n or found.nnodes):
        raise Refused(f"bsub: bad name {found.J[-1]!r}, or no slots")
    tasks = {"TASKS": ",".join(map(str, range(1, int(name[3]) + 1)))} if name[3] else {}
    again = [code for each in found.Q for code in each.split()]
    log = found.o[-1].replace("%J", "0").replace("%I", "0")
    print(
        f"Job <{Queue().add(text, dict(tasks), after, log=log, again=again)}> is submitted to queue <normal>."
    )


def bjobs(words: list[str]) -> None:
    """Show jobs of what is no LSF."""
    if words[:3] != ["-a", "-noheader", "-o"] or 'delimiter="|"' not in words[3]:
        raise Refused(f"bjobs: illegal options {words}")
    for name in words[4:]:
        number, _, index = name.rstrip("]").partition("[")
        code = Queue().code(f"{number}.{index}" if index else number)
        ended = f"{'EXIT' if code else 'DONE'}|{code or '-'}|-|-|n1"
        print(f"{number}|{index or 0}|{'RUN|-|-|0:05 L|n1' if code is None else ended}|-")


def flux(words: list[str]) -> None:
    """Do what is no Flux."""
    words = words[1:] if words[:2] == ["--parent", "jobs"] else words
    if words[:2] == ["jobs", "--json"]:
        code = Queue().code(flux_number(words[2]))
        ended = {"state": "INACTIVE", "result": "FAILED" if code else "COMPLETED", "returncode": code}
        print(json.dumps({"state": "RUN", "expiration": time.time() + 300} if code is None else ended))
    elif words[0] == "run":
        found, command = FLUX_RUN.parse_known_args(words[1:])
        if any(word.startswith("-") for word in command[: command.index("hpcbal")]):
            raise Refused(f"flux run: unknown options in {command}")
        start(int(found.nodes[-1]) * int(found.tasks_per_node[-1]), command)
    elif words[:2] == ["--parent", "batch"] or words[0] == "batch":
        text = Path(words[-1]).read_text()
        own = words[words.index("batch") + 1 : -1]
        found = FLUX_BATCH.parse_args([*directives(text, "# flux: "), *own])
        matching(r"\d+(\.\d+)?[smhd]?", found.time_limit[-1])
        after = [flux_number(matching(r"afterany:f\w+", each).partition(":")[2]) for each in found.dependency]
        log = found.output[-1].replace("{{id}}", "0")
        environ = {"HPCBAL_TASK": os.environ.get("HPCBAL_TASK", "")}
        print(flux_name(int(Queue().add(text, environ, after, log=log, again=[]))))
    else:
        raise Refused(f"flux: unknown command {words}")


def jsrun(words: list[str]) -> None:
    """Start ranks, without jsrun."""
    found, command = JSRUN.parse_known_args(words)
    if any(word.startswith("-") for word in command[: command.index("hpcbal")]):
        raise Refused(f"jsrun: unknown options in {command}")
    start(int(found.nrs[-1]) * int(found.tasks_per_rs[-1]), command)


def start(num_ranks: int, command: list[str]) -> None:
    """Become the mpirun that starts the ranks."""
    os.execvp("mpirun", ["mpirun", "-n", str(num_ranks), "--bind-to", "none", "--oversubscribe", *command])


if __name__ == "__main__":
    if sys.argv[1] == "_run":
        run(sys.argv[2])
    else:
        globals()[sys.argv[1]](sys.argv[2:])
