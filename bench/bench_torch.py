"""The quick start in PyTorch against plain loops: the same networks, epochs, data and preprocessing.

Three figures, all of them ours over plain PyTorch (lower is better), as in bench_quickstart.py:

- `vs_torch_processes`: wall time of `hpcbal run configs/digits_torch.yaml`, over that of plain processes of
  PyTorch, one per core, which train each network for as many epochs as ours had, imports included.
- `vs_torch_processes_long`: the same with 40 epochs for each network.
- `step_vs_torch_max`: a step of a group of one rank over that of a plain loop, median, the largest of four
  networks. One core, one thread.

    python bench/bench_torch.py --json torch.json
    python bench/bench_torch.py --repeat 1 --most-epochs 1 --epochs-long 2 --step-rounds 2   # short
"""

from __future__ import annotations

from bench_quickstart import Peer, main
from support.starting import HERE

TORCH = Peer("PyTorch", "torch", HERE.parent / "configs" / "digits_torch.yaml", (1.4, 1.1, 1.05))

if __name__ == "__main__":
    main(peer=TORCH, description=__doc__)
