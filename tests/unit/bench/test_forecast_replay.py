"""How the bench of forecasts limits links, and cuts a worker's computation into waits."""

from __future__ import annotations

import socket
import threading

from support.forecast_relay import Relay, Route
from support.forecast_segments import Segment, segments_of

from hpcbal.forecast import Operation, Resource, trace_of_steps


def echo(listener: socket.socket) -> None:
    """Send back what comes, twice, until the other side has sent all."""
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(4096):
            connection.sendall(data * 2)


def test_the_relay_passes_every_byte_on_and_charges_each_direction_to_its_link() -> None:
    sent = bytes(range(256)) * 100
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=echo, args=(listener,))
        server.start()
        route = Route(f"127.0.0.1:{listener.getsockname()[1]}", "up", "down")
        with Relay({"up": 1e7, "down": 1e7, "other": 1.0}, [route]) as relay:
            with socket.create_connection(("127.0.0.1", relay.ports[0]), timeout=20) as client:
                writer = threading.Thread(
                    target=lambda: (client.sendall(sent), client.shutdown(socket.SHUT_WR))
                )
                writer.start()
                got = b""
                while data := client.recv(65536):
                    got += data
                writer.join()
            server.join()
            carried = [relay.bytes_carried(link) for link in ("up", "down", "other")]
    assert len(got) == 2 * len(sent)
    assert sorted(got) == sorted(sent * 2)
    assert carried == [len(sent), 2 * len(sent), 0]


def test_waits_are_cut_where_transfers_begin_and_end() -> None:
    operations = [
        Operation("w1", Resource.DOWNLINK, (), 4),
        Operation("w2", Resource.DOWNLINK, (), 4),
        Operation("shape", Resource.WORKER),
        Operation("layer 1", Resource.WORKER, (0,)),
        Operation("relu 1", Resource.WORKER, (3,)),
        Operation("layer 2", Resource.WORKER, (1, 4)),
        Operation("gradient 2", Resource.WORKER, (5,)),
        Operation("send 2", Resource.UPLINK, (6,), 4),
        Operation("gradient 1", Resource.WORKER, (6,)),
        Operation("send 1", Resource.UPLINK, (8,), 4),
    ]
    assert segments_of(trace_of_steps(operations, [[0.0] * 10])) == [
        Segment([], [2], []),
        Segment([0], [3, 4], []),
        Segment([1], [5, 6], [7]),
        Segment([], [8], [9]),
    ]
