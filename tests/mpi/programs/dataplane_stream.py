"""Every reader checks every sample of a few passes; rank 0 prints counters of all producers as JSON.

Arguments: one JSON object, see `main`.
"""

from __future__ import annotations

import json
import sys

from dataplane_harness import Cast, FakeSource, read_passes
from mpi4py import MPI

from hpcbal.control.messages import Position


def main() -> None:
    settings = {
        "nodes": [[1, 1]],
        "shape": [5, 3],
        "bad_every": 0,
        "passes": 3,
        "first_pass": 0,
        "offset": 0,
        "slots": 4,
        "block_samples": 8,
        "steps": [8],  # samples per read, by reader rank
        "delays_s": [0.0],  # sleep after each read, by reader rank
        "num_train": 45,
        "num_positions": 61,
        **json.loads(sys.argv[1]),
    }
    source = FakeSource(
        settings["num_train"], settings["num_positions"], tuple(settings["shape"]), settings["bad_every"]
    )
    spec = source.spec(settings["block_samples"], settings["slots"])
    cast = Cast([tuple(sizes) for sizes in settings["nodes"]], spec)
    first_pass, offset = settings["first_pass"], settings["offset"]
    actor = cast.producer(source) if cast.is_producer else cast.reader()
    passes = range(first_pass, first_pass + settings["passes"])

    def read(reader):
        rank = cast.world.rank
        step = settings["steps"][rank % len(settings["steps"])]
        delay_s = settings["delays_s"][rank % len(settings["delays_s"])]
        read_passes(reader, source, passes, step, offset, delay_s)

    plan = cast.plan(1, first_pass, offset // spec.block_samples)
    cast.run_round(plan, actor, read, Position(first_pass, offset))
    facts = {"num_slots": spec.num_slots, "reads": [], "bad": []}
    if cast.is_producer:
        assert actor.reads == sum(source.reads.values())
        assert actor.samples_made == actor.reads - len(actor.take_bad() or []) or settings["bad_every"]
        facts["reads"] = [[i, p, n] for (i, p), n in source.reads.items()]
    gathered = cast.world.gather(facts)
    cast.close()
    if cast.world.rank == 0:
        print(json.dumps(gathered))


if __name__ == "__main__":
    MPI.COMM_WORLD.Barrier()
    main()
