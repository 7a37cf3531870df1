"""TensorFlow's records become a trace. The recorded steps are of a small network, 1 worker, 1 server."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from traces import like_machines

from hpcbal.forecast import Resource, Settings, TraceError, simulate
from hpcbal.forecast.run_metadata import trace_of_run_metadata

RECORDED = Path(__file__).parents[2] / "data" / "run_metadata" / "alexnet.json"
PS, WORKER = (f"/job:{job}/replica:0/task:0/device:CPU:0" for job in ("ps", "worker"))
LAYERS = [
    *(5 * 5 * 3 * 64, 64, 3 * 3 * 64 * 96, 96, 3 * 3 * 96 * 128, 128, 3 * 3 * 128 * 128, 128),
    *(3 * 3 * 128 * 64, 64, 4 * 4 * 64 * 512, 512, 512 * 512, 512, 512 * 100, 100),
]
"""Parameters of each variable of the recorded network."""


def pair(tensor: str, sender: str, receiver: str) -> dict[str, Any]:
    texts = {"tensor_name": tensor, "send_device": sender, "recv_device": receiver}
    return {key: {"s": base64.b64encode(text.encode()).decode()} for key, text in texts.items()}


def node(name: str, op: str, device: str, *inputs: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "op": op, "device": device, "input": list(inputs), **more}


def stats(name: str, micros: int, start: int = 0) -> dict[str, Any]:
    return {"node_name": name, "all_start_micros": str(start), "op_end_rel_micros": str(micros)}


def received(
    tensor: str, sender: str, receiver: str, size: int, start: int = 0, micros: int = 70
) -> dict[str, Any]:
    output = {"tensor_description": {"allocation_description": {"requested_bytes": str(size)}}}
    label = f"[{size}B] [1Mb/s] {tensor} from {sender} to {receiver}"
    return stats("RecvTensor", micros, start) | {"timeline_label": label, "output": [output]}


def small_step() -> dict[str, Any]:
    """A variable goes to the worker, which computes a gradient that the server applies."""
    down, up = pair("edge_1_w/read", PS, WORKER), pair("edge_2_g", WORKER, PS)
    server = [
        node("w", "VariableV2", PS),
        node("s", "_Send", PS, "w:0", attr=down),
        node("r", "_Recv", PS, attr=up),
        node("apply", "ApplyGradientDescent", PS, "w", "r"),
    ]
    worker = [
        node("r", "_Recv", WORKER, attr=down),
        node("noop", "NoOp", WORKER, "^r"),
        node("g", "MatMul", WORKER, "^noop"),
        node("s", "_Send", WORKER, "g", attr=up),
    ]
    return {
        "partition_graphs": [{"node": server}, {"node": worker}],
        "step_stats": {
            "dev_stats": [
                {"device": PS, "node_stats": [stats("apply", 30), received("edge_2_g", WORKER, PS, 8)]},
                {
                    "device": WORKER,
                    "node_stats": [stats("g", 500), received("edge_1_w/read", PS, WORKER, 4)],
                },
            ]
        },
    }


def test_transfers_are_in_the_order_of_requests_and_tensors_in_that_in_which_they_were_handed_over() -> None:
    # The small parameter is parsed before the large one that it has waited for. The first gradient goes last.
    downs = [pair(f"edge_{i}_{name}/read", PS, WORKER) for i, name in enumerate(("large", "small"))]
    ups = [pair(f"edge_{i}_g{i}", WORKER, PS) for i in (3, 4)]
    server = [
        *(node(f"v{i}", "VariableV2", PS) for i in range(2)),
        *(node(f"s{i}", "_Send", PS, f"v{i}:0", attr=attributes) for i, attributes in enumerate(downs)),
        *(node(f"r{i}", "_Recv", PS, attr=attributes) for i, attributes in enumerate(ups)),
    ]
    worker = [
        *(node(f"r{i}", "_Recv", WORKER, attr=attributes) for i, attributes in enumerate(downs)),
        node("g3", "MatMul", WORKER, "r0", "r1"),
        node("g4", "MatMul", WORKER, "g3"),
        *(node(f"s{i}", "_Send", WORKER, f"g{i}", attr=ups[i - 3]) for i in (3, 4)),
    ]
    step = {
        "partition_graphs": [{"node": server}, {"node": worker}],
        "step_stats": {
            "dev_stats": [
                {
                    "device": PS,
                    "node_stats": [
                        received("edge_3_g3", WORKER, PS, 8, 1_990, 300),
                        received("edge_4_g4", WORKER, PS, 8, 1_980, 10),
                    ],
                },
                {
                    "device": WORKER,
                    "node_stats": [
                        received("edge_0_large/read", PS, WORKER, 4_000, 1_000, 500),
                        received("edge_1_small/read", PS, WORKER, 4, 1_010, 480),
                        stats("g3", 100, 1_500),
                        stats("g4", 300, 1_600),
                    ],
                },
            ]
        },
    }
    trace = trace_of_run_metadata([step], 16)
    names = [operation.name for operation in trace.operations]
    assert trace.downlink_orders is not None
    order = [names[position] for position in trace.downlink_orders[0]]
    assert order == ["receive edge_0_large/read", "receive edge_1_small/read"]
    assert names[2:] == [
        *("g3", "g4", "hand over edge_4_g4", "send edge_4_g4", "hand over edge_3_g3", "send edge_3_g3")
    ]


def test_a_step_without_statistics_of_a_server_has_the_means_of_others() -> None:
    missing = small_step()
    missing["step_stats"]["dev_stats"].pop(0)
    trace = trace_of_run_metadata([small_step(), missing], 16)
    assert trace.durations_s[1].tolist() == pytest.approx(trace.durations_s[0].tolist())


def test_a_send_and_its_receive_become_one_transfer_between_both_graphs() -> None:
    trace = trace_of_run_metadata([small_step()], 16)
    shape = [(o.resource, o.waits_for, o.num_bytes) for o in trace.operations]
    assert shape == [
        (Resource.DOWNLINK, (), 4),
        (Resource.WORKER, (0,), 0),
        (Resource.WORKER, (1,), 0),
        (Resource.UPLINK, (2,), 8),
        (Resource.SERVER, (3,), 0),
    ]
    assert trace.operations[0].variable == "w"
    assert trace.durations_s[0].tolist() == pytest.approx([70e-6, 500e-6, 0.0, 70e-6, 30e-6])
    assert trace.samples_per_step == 16


def test_transfers_of_each_step_come_in_the_order_in_which_they_arrived() -> None:
    steps = []
    for starts in ((10, 50), (50, 10)):
        step = small_step()
        other = pair("edge_3_b/read", PS, WORKER)
        step["partition_graphs"][0]["node"] += [node("b", "VariableV2", PS), node("t", "_Send", PS, "b")]
        step["partition_graphs"][0]["node"][-1]["attr"] = other
        step["partition_graphs"][1]["node"].append(node("q", "_Recv", WORKER, attr=other))
        transfers = step["step_stats"]["dev_stats"][1]["node_stats"]
        transfers.append(received("edge_3_b/read", PS, WORKER, 4))
        for transfer, start in zip(transfers[1:], starts, strict=True):
            transfer["all_start_micros"] = str(start)
        step["step_stats"]["dev_stats"][0]["node_stats"].append(stats("b", 5))
        steps.append(step)
    trace = trace_of_run_metadata(steps, 1)
    assert trace.downlink_orders is not None
    named = [[trace.operations[p].variable for p in order] for order in trace.downlink_orders]
    assert named == [["w", "b"], ["b", "w"]]
    assert all(trace.operations[p].waits_for == () for p in trace.downlink_orders[0])  # reads take no time


def test_a_recorded_step_moves_every_parameter_once_in_each_direction() -> None:
    trace = trace_of_run_metadata(json.loads(RECORDED.read_text(encoding="utf-8")), 16)
    sizes = {
        way: sorted(trace.operations[p].num_bytes for p in trace.positions(way))
        for way in (Resource.DOWNLINK, Resource.UPLINK)
    }
    assert sizes[Resource.DOWNLINK] == sorted(4 * size for size in LAYERS)
    learning_rate = [4]  # a constant of the worker, goes up too
    assert sizes[Resource.UPLINK] == sorted([*sizes[Resource.DOWNLINK], *learning_rate])
    assert trace.num_steps == 2
    replay = simulate(trace, like_machines(1, 1, 25e6), Settings(num_steps=20))
    assert replay.bytes_moved[0, 0] == pytest.approx(20 * 4 * sum(LAYERS))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda step: step.pop("partition_graphs"), "output_partition_graphs=True"),
        (lambda step: step.pop("step_stats"), "trace_level=FULL_TRACE"),
        (lambda step: step["partition_graphs"][0]["node"].pop(1), "no task sends it"),
        (lambda step: step["partition_graphs"][1]["node"].pop(1), "which no graph has"),
        (lambda step: step["partition_graphs"][1]["node"][2]["input"].append("s"), "wait for each other"),
        (
            lambda step: step["step_stats"]["dev_stats"][0]["node_stats"][1].pop("timeline_label"),
            "from DEVICE to DEVICE",
        ),
    ],
)
def test_a_damaged_record_is_refused_with_what_is_wrong(damage: Any, message: str) -> None:
    step = small_step()
    damage(step)
    with pytest.raises(TraceError, match=message):
        trace_of_run_metadata([step], 1)


def test_no_steps_are_refused() -> None:
    with pytest.raises(TraceError, match="at least one"):
        trace_of_run_metadata([], 1)
