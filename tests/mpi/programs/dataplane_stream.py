"""Every reader checks every sample of a few passes; rank 0 prints JSON: per round, how often each
[id, pass] was asked of the source, over all producers: [[id, pass, times], ...].

Arguments: one JSON object, see `main`.
"""

from __future__ import annotations

import json
import sys
from functools import partial

from dataplane_harness import Cast, FakeSource, read_passes

from hpcbal.dataplane.producer import Producer
from hpcbal.dataplane.stream import round_block
from hpcbal.events.history import Position


def main() -> None:
    settings = {
        "nodes": [[1, 1]],
        "shape": [5, 3],
        "bad_every": 0,
        "passes": 3,
        "first_pass": 0,
        "offsets": [0],  # where the first pass starts; one round for each
        "slots": 4,
        "block_samples": 8,
        "steps": [8],  # samples per read, by world rank
        "delays_s": [0.0],  # sleep after each read, by world rank
        "num_train": 45,
        "num_positions": 61,
        **json.loads(sys.argv[1]),
    }
    source = FakeSource(
        settings["num_train"], settings["num_positions"], tuple(settings["shape"]), settings["bad_every"]
    )
    spec = source.spec(settings["block_samples"], settings["slots"])
    cast = Cast([tuple(sizes) for sizes in settings["nodes"]], spec)
    actor = cast.producer(source) if cast.is_producer else cast.reader()
    first_pass, place = settings["first_pass"], cast.world.rank
    rounds = []
    for number, offset in enumerate(settings["offsets"]):
        source.reads.clear()
        read = partial(
            read_passes,
            source=source,
            passes=range(first_pass, first_pass + settings["passes"]),
            step=settings["steps"][place % len(settings["steps"])],
            start=offset,
            delay_s=settings["delays_s"][place % len(settings["delays_s"])],
        )
        plan = cast.plan(number + 1, first_pass, round_block(spec, first_pass, first_pass, offset))
        cast.run_round(plan, actor, read, Position(first_pass, offset))
        gathered = cast.world.gather([[i, p, n] for (i, p), n in source.reads.items()])
        rounds.append([reads for of_rank in gathered or () for reads in of_rank])
        if cast.is_producer:
            assert isinstance(actor, Producer)
            bad = actor.take_bad()
            assert all(source.is_bad(sample_id) for sample_id, _, _ in bad)
            assert len(bad) == sum(source.is_bad(i) for i, _ in source.reads)
    cast.close()
    if cast.world.rank == 0:
        print(json.dumps(rounds))


if __name__ == "__main__":
    main()
