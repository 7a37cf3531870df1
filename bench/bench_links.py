"""How links carry MPI messages: one after the other, or side by side; and what that makes of a job.

MPI over TCP between five emulated hosts (network namespaces on one bridge), whose links the kernel paces in
each direction (tc tbf). Needs root, iproute2 and util-linux.

    python bench/bench_links.py --json links.json

Part `messages`: two ranks send to one at the same moment. Over the time of a message alone, messages of equal
length end at 2 and 2 if they share the link, at 1 and 2 in turn; beside one of four times its length, a
message ends at 2, or at 1 or 5.

Part `job`: a real `async` job on parameter servers, whose turns pull and push 1.525 MB and compute for 2.41
ms, on 1 + 1, 3 + 1 and 2 + 2 workers and servers: samples/s of the fastest epoch but the first. What one
worker's turn takes beside its bytes goes into both predictions for the others (`<case>_shared`,
`<case>_in_turn`).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.figures import parser_of, write_figures

from hpcbal.policies.batching import split_evenly
from hpcbal.policies.configuring.cost_model import Configuration, Links, Machine, Problem, epoch_cost

HERE = Path(__file__).resolve().parent
BYTES, SAMPLE_S, BATCH, SAMPLES, BLOCKS, EPOCHS = 1_524_800, 0.241e-3, 10, 3000, 60, 4
CASES = ((1, 1), (3, 1), (2, 2))
TIMEOUT_S = 300

HOSTS = r"""set -e
mount -t tmpfs none /run/netns
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
ip addr add 10.9.0.254/24 dev br0
cp /etc/hosts "$1/hosts"
for i in 1 2 3 4 5; do
  ip netns add n$i
  ip link add v$i type veth peer name eth0 netns n$i
  ip link set v$i master br0 up
  ip -n n$i addr add 10.9.0.$i/24 dev eth0
  ip -n n$i link set eth0 up
  ip -n n$i link set lo up
  tc qdisc add dev v$i root tbf rate $2 burst 256kb latency 50ms
  tc -n n$i qdisc add dev eth0 root tbf rate $2 burst 256kb latency 50ms
  echo "10.9.0.$i n$i" >> "$1/hosts"
done
mount --bind "$1/hosts" /etc/hosts
hostname head
cd "$1"
shift 2
exec "$@"
"""
AGENT = """#!/bin/sh
# Run a command on an emulated host, as ssh would.
host=$1; shift
exec nsenter --net=/run/netns/$host unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
"""
APP = f"""import numpy as np
from hpcbal.paramserver.api import App, Table

class Points:
    num_samples, facts = {SAMPLES}, {{}}
    def read(self, samples):
        return {{"x": np.zeros((len(samples), 1))}}

def points():
    return Points()

class Whole(App):
    delta = np.full((4765, 40), 1e-9)
    def tables(self):
        return [Table("w", 4765, 40)]
    def compute(self, batch, parameters):
        return {{"w": self.delta}}
    def objective(self, batch, parameters):
        return {{"loss": 1.0}}
    def metrics(self, sums):
        return {{"loss": 1.0}}
"""
JOB = f"""kind: paramserver
app: app:Whole
data: {{dataset: "app:points"}}
mini_batch: {BATCH}
consistency: async
tune: {{enabled: false}}
objective: {{every: {EPOCHS}}}
stop: {{max_epochs: {EPOCHS}}}
machines: [{{seconds_per_sample: {SAMPLE_S}}}]
"""


def on_hosts(folder: Path, rate: str, num_ranks: int, program: Sequence[str]) -> str:
    """Start ranks, each on a host of its own; returns their output.

    Raises:
        SystemExit: they failed; their output is shown.
    """
    agent = folder / "agent.sh"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    names = ",".join(f"n{number}" for number in range(1, num_ranks + 1))
    mpirun = [str(Path(sys.executable).parent / "mpirun"), "--prtemca", "plm_ssh_agent", str(agent)]
    mpirun += ["--host", names, "-n", str(num_ranks), "--map-by", "node", "--mca", "pml", "ob1"]
    mpirun += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0"]
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        mpirun += ["-x", f"{name}=1"]
    hosts = [
        "unshare",
        "--net",
        "--mount",
        "--uts",
        "--fork",
        "bash",
        "-c",
        HOSTS,
        "hosts",
        str(folder),
        rate,
    ]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    Path("/run/netns").mkdir(exist_ok=True)
    done = subprocess.run(
        [*hosts, *mpirun, *program], env=os.environ | root, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}\n{done.stderr}\n{shlex.join(program)} ended with {done.returncode}")
    return done.stdout


def messages(folder: Path, rate: str, repeats: int) -> dict[str, float]:
    """Ends of messages, over the time of one alone."""
    program = [sys.executable, str(HERE / "ranks/links.py"), "--bytes", str(BYTES), "--repeats", str(repeats)]
    found: dict[str, float] = json.loads(on_hosts(folder, rate, 3, program).splitlines()[-1])
    return found


def measured_rate(folder: Path, rate: str, workers: int, servers: int) -> float:
    """Samples/s of the fastest epoch but the first."""
    (folder / "app.py").write_text(APP)
    (folder / "job.yaml").write_text(JOB)
    run = folder / f"{workers}_{servers}"
    program = [str(Path(sys.executable).parent / "hpcbal"), "run", "job.yaml", "--set", f"output.dir={run}"]
    program += ["--set", f"workers={workers}", "--set", f"servers={servers}"]
    on_hosts(folder, rate, 1 + workers + servers, program)
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    return SAMPLES / min(
        line["seconds"] for line in lines if line["event"] == "job-epoch" and line["epoch"] > 1
    )


def predicted_rate(links: Links, bytes_per_s: float, workers: int, servers: int, overhead_s: float) -> float:
    """Samples/s by the tuner's model."""
    problem = Problem(
        (Machine(SAMPLE_S, bytes_per_s),) * (workers + servers),
        num_samples=SAMPLES,
        num_data_blocks=BLOCKS,
        num_parameter_blocks=BLOCKS,
        mini_batch=BATCH,
        turns="per_worker",
        pull_bytes=BYTES,
        push_bytes=BYTES,
        turn_overhead_s=overhead_s,
        links=links,
    )
    data, parameters = split_evenly(BLOCKS, workers), split_evenly(BLOCKS, servers)
    roles = Configuration.of_blocks([*data, *[0] * servers], [*[0] * workers, *parameters])
    return SAMPLES / epoch_cost(problem, roles).epoch_s


def main(argv: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--parts", nargs="+", choices=("messages", "job"), default=("messages", "job"))
    parser.add_argument("--mbit", type=int, default=800, help="of each link in each direction")
    parser.add_argument("--repeats", type=int, default=20, help="of each pair of messages")
    args = parser.parse_args(argv)
    rate, bytes_per_s = f"{args.mbit}mbit", args.mbit * 1e6 / 8
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench_links_") as scratch:
        if "messages" in args.parts:
            results |= messages(Path(scratch), rate, args.repeats)
        if "job" in args.parts:
            found = {case: measured_rate(Path(scratch), rate, *case) for case in CASES}
            overhead_s = BATCH / found[1, 1] - BATCH * SAMPLE_S - 2 * BYTES / bytes_per_s
            for case, measured in found.items():
                name = f"workers_{case[0]}_servers_{case[1]}"
                results[name] = measured
                for links in ("shared", "in_turn"):
                    results[f"{name}_{links}"] = predicted_rate(
                        links, bytes_per_s, *case, max(0.0, overhead_s)
                    )
    for key, value in results.items():
        print(f"{key:30s} {value:.3f}")
    write_figures(args.json, results | {"mbit": args.mbit})


if __name__ == "__main__":
    main()
