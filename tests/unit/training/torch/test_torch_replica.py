"""Modules of PyTorch train exactly, alone and in groups, and are saved and loaded completely."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_modules
from loopback import Meeting
from loopback_groups import LoopbackCollective

from hpcbal.data.arrays import Affine
from hpcbal.errors import CheckpointError
from hpcbal.training.collective import LocalCollective
from hpcbal.training.groups import GroupFailed, NonFiniteError
from hpcbal.training.step import evaluate_step, train_step
from hpcbal.training.torch.backend import TorchBackend
from hpcbal.training.torch.files import write_module
from hpcbal.training.torch.inputs import view_of

Make = Callable[..., Any]
LINEAR, NORMALISED, DROPPING = "torch_modules:linear", "torch_modules:normalised", "torch_modules:dropping"
OPTIMIZERS = [
    *("sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "adamax", "nadam", "radam", "asgd", "rprop"),
    "adafactor",
]


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Make:
    def make(model: str = LINEAR, seed: int = 0, precision: str = "float64", **given: Any) -> Any:
        dtype = "float64" if precision == "float64" else "float32"
        backend = TorchBackend(precision=precision)
        return backend.build(make_dnn(model=model, **given), make_spec(dtype=dtype), 5, seed)

    return make


def cut(batch: Any, start: int, stop: int) -> Any:
    return type(batch)(batch.ids[start:stop], batch.x[start:stop], batch.y[start:stop])


def twin_of(replica: Any, module: torch.nn.Module) -> torch.nn.Module:
    """A plain module, with the weights of the replica."""
    module.double().eval()(torch.zeros(1, 1, 6, 6, dtype=torch.float64))
    module.load_state_dict({name[8:]: torch.from_numpy(array) for name, array in replica.weights().items()})
    return module


def in_group(replicas: list[Any], work: Callable[[Any, int, LoopbackCollective], None]) -> None:
    """Do the work of each rank in a thread of its own; raises what a rank raises."""
    meeting, errors = Meeting(len(replicas)), []

    def run(rank: int) -> None:
        try:
            work(replicas[rank], rank, LoopbackCollective(rank, meeting))
        except BaseException as error:
            errors.append(error)
            meeting.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(replicas))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    if errors:
        raise errors[0]


def assert_equal_states(one: Any, other: Any) -> None:
    assert list(one.state()) == list(other.state())
    for name, array in one.state().items():
        np.testing.assert_array_equal(array, other.state()[name], err_msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_is_that_of_a_plain_loop(build: Make, make_batch: Make, optimizer: str) -> None:
    momentum = {"momentum": 0.9} if optimizer in ("sgd", "rmsprop") else {"momentum": 0.0}
    decay = 0.0 if optimizer == "rprop" else 0.001
    replica = build(NORMALISED, optimizer=optimizer, learning_rate=0.01, weight_decay=decay, **momentum)
    module = twin_of(replica, torch_modules.normalised((1, 6, 6), 5))
    kinds = {name.lower(): kind for name, kind in vars(torch.optim).items()}
    given = {"momentum": 0.9} if momentum["momentum"] else {}
    given |= {"weight_decay": decay} if decay else {}
    twin = kinds[optimizer](module.parameters(), lr=0.01, **given)
    for step, n in enumerate((8, 3, 5)):
        batch = make_batch(n, step)
        train_step(replica, batch, n, LocalCollective())
        module.train()
        logits = module(torch.from_numpy(batch.x).permute(0, 3, 1, 2))
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.y)).backward()
        twin.step()
        twin.zero_grad()
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(replica.weights()[f"weights/{name}"], tensor.numpy(), atol=1e-12)


@pytest.mark.parametrize("shares", [(0, 4, 5, 9), (0, 0, 6, 9), (0, 3, 6, 9)])
@pytest.mark.parametrize("model", [LINEAR, "torch_modules:normalised"])
def test_a_group_trains_like_one_process(build: Make, make_batch: Make, model: str, shares: Any) -> None:
    """The oracle: plain PyTorch in one process; the layers of batch norm sum over the group."""
    given = {"optimizer": "adam", "learning_rate": 0.01, "momentum": 0.0, "clip_norm": 0.5}
    args = {"kind": "SyncBatchNorm"} if model == NORMALISED else {}
    replicas = [build(model, **given, **args) for _ in range(3)]
    module = twin_of(replicas[0], getattr(torch_modules, model.partition(":")[2])((1, 6, 6), 5))
    plain = torch.optim.Adam(module.parameters(), lr=0.01)

    def work(replica: Any, rank: int, collective: LoopbackCollective) -> None:
        for step in range(4):
            batch = make_batch(9, step)
            train_step(replica, cut(batch, shares[rank], shares[rank + 1]), 9, collective)
        evaluate_step(replica, cut(make_batch(9), shares[rank], shares[rank + 1]), collective)

    in_group(replicas, work)
    for step in range(4):
        batch = make_batch(9, step)
        module.train()
        logits = module(torch.from_numpy(batch.x).permute(0, 3, 1, 2))
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.y)).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        plain.step()
        plain.zero_grad()
    for replica in replicas:
        for name, tensor in module.state_dict().items():
            np.testing.assert_allclose(
                replica.weights()[f"weights/{name}"], tensor.numpy(), rtol=1e-10, atol=1e-10, err_msg=name
            )


def test_moving_statistics_are_those_of_the_whole_step(build: Make, make_batch: Make) -> None:
    """The means; variances are those of the parts, without bias, and that between their means."""
    split, whole, batch = build(NORMALISED), build(NORMALISED), make_batch(9)
    batch.x[3:] += 5.0  # the ranks' means are far apart
    for _ in range(3):
        train_step(whole, batch, 9, LocalCollective())
        parts = [split.compute(cut(batch, a, b), 9).tensors for a, b in ((0, 3), (3, 5), (5, 9))]
        split.apply([sum(tensor) for tensor in zip(*parts, strict=True)])
        for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
            ours, theirs = split.state()[f"weights/{name}"], whole.state()[f"weights/{name}"]
            np.testing.assert_allclose(ours, theirs, rtol=0.02 if "var" in name else 1e-12)
        split.load_state(whole.state())


def test_a_replaced_buffer_moves_and_a_constant_one_does_not_travel(build: Make, make_batch: Make) -> None:
    split, whole, batch = build("torch_modules:counting"), build("torch_modules:counting"), make_batch(9)
    assert len(split.zeros().tensors) == 4  # weight, bias, mean, and which have gradients
    for _ in range(2):
        train_step(whole, batch, 9, LocalCollective())
        parts = [split.compute(cut(batch, a, b), 9).tensors for a, b in ((0, 3), (3, 9))]
        split.apply([sum(tensor) for tensor in zip(*parts, strict=True)])
    assert whole.state()["weights/mean"] == pytest.approx(0.75 * batch.x.mean(), rel=1e-12)
    assert split.state()["weights/mean"] == pytest.approx(0.75 * batch.x.mean(), rel=1e-12)


def test_computing_changes_nothing(build: Make, make_batch: Make) -> None:
    replica = build(NORMALISED)
    before = replica.state()
    replica.compute(make_batch(5), 9)
    replica.evaluate(make_batch(5))
    replica.predict(make_batch(5))
    for name, array in replica.state().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_random_layers_draw_by_seed_step_and_sample(build: Make, make_batch: Make) -> None:
    """A replica that goes on from a checkpoint draws what the first one draws, whatever came between."""
    first, batch = build(DROPPING), make_batch(6)
    train_step(first, batch, 6, LocalCollective())
    second = build(DROPPING, seed=3)
    second.evaluate(batch)
    torch.rand(7)
    second.load_state(first.state())
    second._seed = first._seed  # of the same run
    for replica in (first, second):
        train_step(replica, batch, 6, LocalCollective())
    assert_equal_states(first, second)
    other = cut(batch, 0, 6)
    other.ids[:] += 1
    third = build(DROPPING)
    third.load_state(first.state())
    one = [tensor.clone() for tensor in third.compute(batch, 6).tensors]
    shifted = third.compute(type(batch)(batch.ids + 5, batch.x, batch.y), 6).tensors
    assert not all(torch.equal(a, b) for a, b in zip(one, shifted, strict=True))


def test_what_is_random_in_inference_draws_by_seed_step_and_sample(build: Make, make_batch: Make) -> None:
    """So validation, and what follows from it, is the same after a kill."""
    first, second = (build("torch_modules:always_dropping") for _ in range(2))
    batch = make_batch(6)
    assert first.evaluate(batch) == second.evaluate(batch) == first.evaluate(batch)
    np.testing.assert_array_equal(first.predict(batch), second.predict(batch))
    train_step(first, batch, 6, LocalCollective())
    second.load_state(first.state())
    torch.rand(3)
    assert first.evaluate(batch) == second.evaluate(batch)


def test_batch_normalisation_of_one_sample_says_what_to_do(build: Make, make_batch: Make) -> None:
    replica = build("torch_modules:normalised_vector")
    train_step(replica, make_batch(2), 2, LocalCollective())
    with pytest.raises(GroupFailed, match=r"one sample, .* choose a batch_size .* or use SyncBatchNorm"):
        train_step(replica, make_batch(1), 1, LocalCollective())


def test_seeding_a_step_leaves_nothing_behind(build: Make, make_batch: Make) -> None:
    """`torch.manual_seed` queues a call, with the stack of its caller, for devices that are not there."""
    replica = build(DROPPING)
    before = len(torch.cuda._queued_calls)
    for step in range(3):
        train_step(replica, make_batch(4, step), 4, LocalCollective())
    assert len(torch.cuda._queued_calls) == before


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_state_goes_to_another_replica_completely(build: Make, make_batch: Make, optimizer: str) -> None:
    given = {"optimizer": optimizer, "momentum": 0.0, "learning_rate": 0.01}
    first, second = build(NORMALISED, **given), build(NORMALISED, seed=1, **given)
    for step in range(3):
        train_step(first, make_batch(6, step), 6, LocalCollective())
    train_step(second, make_batch(6, 9), 6, LocalCollective())
    second.load_state(first.state())
    assert_equal_states(first, second)
    for replica in (first, second):
        replica.set_learning_rate(0.005)
        train_step(replica, make_batch(6, 5), 6, LocalCollective())
    assert_equal_states(first, second)
    assert sum(array.nbytes for array in first.state().values()) == first.num_bytes


def test_a_state_before_the_first_step_begins_anew(build: Make, make_batch: Make) -> None:
    given = {"optimizer": "adam", "momentum": 0.0}
    fresh, used = build(**given), build(**given)
    train_step(used, make_batch(6), 6, LocalCollective())
    used.load_state(fresh.state())
    for replica in (fresh, used):
        train_step(replica, make_batch(6), 6, LocalCollective())
    assert_equal_states(fresh, used)


def test_a_state_that_does_not_fit_is_refused_whole(build: Make) -> None:
    replica = build()
    before = replica.state()
    wrong = {**before, "weights/1.bias": np.zeros(7)}
    with pytest.raises(CheckpointError, match=r"layer 1: bias is \(5,\), was \(7,\)"):
        replica.load_state(wrong)
    missing = {name: array for name, array in before.items() if name != "weights/1.weight"}
    with pytest.raises(CheckpointError, match="weight"):
        replica.load_state(missing)
    for name, array in replica.state().items():
        np.testing.assert_array_equal(array, before[name])


def test_nan_changes_nothing_and_is_reported(build: Make, make_batch: Make) -> None:
    replica, batch = build(NORMALISED), make_batch(4)
    before = replica.state()
    batch.x[0, 0, 0, 0] = np.nan
    with pytest.raises(GroupFailed, match="nan on this rank"):
        train_step(replica, batch, 4, LocalCollective())
    with pytest.raises(NonFiniteError, match="validation loss"):
        replica.evaluate(batch)
    for name, array in replica.state().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_a_failing_rank_fails_the_group(build: Make, make_batch: Make) -> None:
    replicas = [build(NORMALISED, kind="SyncBatchNorm") for _ in range(2)]
    seen: list[str] = []

    def work(replica: Any, rank: int, collective: LoopbackCollective) -> None:
        batch = make_batch(4)
        if rank == 1:
            batch.x[:] = np.nan
        with pytest.raises(GroupFailed) as caught:
            train_step(replica, cut(batch, 2 * rank, 2 * rank + 2), 4, collective)
        seen.append(caught.value.cause)

    in_group(replicas, work)
    assert seen == ["nan", "nan"]


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_learns_on_weights_of_32_bits(build: Make, make_batch: Make, precision: str) -> None:
    replica = build("torch_modules:dropping", precision=precision, learning_rate=0.05)
    losses = [
        train_step(replica, make_batch(16, dtype="float32"), 16, LocalCollective()).sums.mean_loss
        for _ in range(30)
    ]
    assert losses[-1] < 0.7 * losses[0]
    assert {array.dtype.name for array in replica.weights().values()} == {"float32"}


def test_an_overflow_skips_the_step_on_all_ranks(build: Make, make_batch: Make) -> None:
    replicas = [build(precision="mixed_float16") for _ in range(2)]
    before = replicas[0].weights()

    def work(replica: Any, rank: int, collective: LoopbackCollective) -> None:
        batch = make_batch(4, dtype="float32")
        if rank == 1:
            batch.x[:] *= 1e4
        train_step(replica, cut(batch, 2 * rank, 2 * rank + 2), 4, collective)

    in_group(replicas, work)
    assert [replica.take_skipped_steps() for replica in replicas] == [1, 1]
    for replica in replicas:
        assert float(replica.state()["optimizer/loss_scale"]) == 2.0**14
        for name, array in replica.weights().items():
            np.testing.assert_array_equal(array, before[name])


def test_images_are_views_with_channels_first(build: Make, make_batch: Make) -> None:
    batch = make_batch(3)
    in_ring = batch.x.view()
    in_ring.flags.writeable = False
    tensors = build().inputs.tensors(type(batch)(batch.ids, in_ring, batch.y))
    assert tensors.x.shape == (3, 1, 6, 6)
    assert tensors.is_shared
    assert tensors.x.data_ptr() == batch.x.ctypes.data
    assert torch.equal(view_of(batch.x[::-1]), torch.from_numpy(batch.x[::-1].copy()))


def test_affine_operations_come_before_the_module(make_dnn: Make, make_spec: Make, make_batch: Make) -> None:
    backend = TorchBackend(precision="float64")
    scaled = backend.build(make_dnn(model=LINEAR), make_spec(), 5, 0, [Affine("float64", 2.0, (0.5,))])
    plain = backend.build(make_dnn(model=LINEAR), make_spec(), 5, 0)
    batch = make_batch(4)
    moved = type(batch)(batch.ids, batch.x * 2.0 - 0.5, batch.y)
    np.testing.assert_allclose(scaled.predict(batch), plain.predict(moved), atol=1e-12)


def test_padded_series_are_masked(make_dnn: Make, make_spec: Make, make_batch: Make) -> None:
    spec = make_spec(shape=(None, 3))
    rng = np.random.default_rng(0)
    series = [rng.normal(size=(length, 3)) for length in (5, 40, 17)]
    batch_of = type(make_batch(1))
    for model in ("torch_modules:masked", "hpcbal.models.torch:recurrent"):
        replica = TorchBackend(precision="float64").build(make_dnn(model=model), spec, 5, 0)
        together = replica.predict(batch_of(np.arange(3), series, np.zeros(3, np.int64)))
        alone = [replica.predict(batch_of(np.arange(1), [each], np.zeros(1, np.int64)))[0] for each in series]
        np.testing.assert_allclose(together, alone, atol=1e-12, err_msg=model)


def test_frozen_parts_stay_as_they_are(build: Make, make_batch: Make) -> None:
    replica = build(NORMALISED, freeze=("0", "1"))
    before = replica.weights()
    train_step(replica, make_batch(6), 6, LocalCollective())
    changed = {name for name, array in replica.weights().items() if not np.array_equal(array, before[name])}
    assert not any(name.startswith(("weights/0.", "weights/1.")) for name in changed)
    assert "weights/3.weight" in changed
    assert not any("/0." in name or "/1." in name for name in replica.state() if "optimizer" in name)


def test_groups_behind_frozen_layers_are_normalised_without_a_crash(build: Make, make_batch: Make) -> None:
    """PyTorch 2.13 crashes where such groups have the channels last, as images from the ring have them."""
    replica, batch = build("torch_modules:groups", freeze=("0",)), make_batch(6)
    found = replica.compute(batch, 6).tensors
    twin = twin_of(replica, torch_modules.groups((1, 6, 6), 5))
    x = torch.from_numpy(batch.x).permute(0, 3, 1, 2).contiguous().requires_grad_()
    torch.nn.functional.cross_entropy(twin(x), torch.from_numpy(batch.y)).backward()
    wanted = [parameter.grad for name, parameter in twin.named_parameters() if not name.startswith("0.")]
    for own, plain in zip(found, wanted, strict=False):
        torch.testing.assert_close(own, plain)


@pytest.mark.parametrize(
    ("freeze", "kept"),
    [(("shift",), {"shift"}), (("scale", "part.bias"), {"part.scale", "part.bias"}), (("sh*",), {"shift"})],
)
def test_parameters_are_frozen_by_name(build: Make, make_batch: Make, freeze: Any, kept: set[str]) -> None:
    replica = build("torch_modules:with_token", freeze=freeze, weight_decay=0.1)
    before = replica.weights()
    train_step(replica, make_batch(6), 6, LocalCollective())
    same = {name[8:] for name, array in replica.weights().items() if np.array_equal(array, before[name])}
    assert same == kept


def test_names_are_those_of_the_state_dict(build: Make) -> None:
    replica = build(NORMALISED)
    assert list(replica.weights()) == [f"weights/{name}" for name in replica.module.state_dict()]
    assert [layer.path for layer in replica.layers()] == ["0", "1", "3", "4", "6"]


def test_a_closed_backend_leaves_the_type_of_the_process_as_it_was() -> None:
    before = torch.get_default_dtype()
    backend = TorchBackend(precision="float64")
    assert torch.get_default_dtype() == torch.float64
    backend.close()
    assert torch.get_default_dtype() == before


def test_backends_of_two_precisions_build_and_leave_the_generator_as_it_was(
    make_dnn: Make, make_spec: Make
) -> None:
    """As two ensembles in one notebook, with random numbers of its own."""
    torch.manual_seed(11)
    before = torch.get_rng_state()
    wide = TorchBackend(precision="float64")
    narrow = TorchBackend()
    try:
        dtypes = [
            {
                array.dtype.name
                for array in backend.build(make_dnn(model=LINEAR), make_spec(dtype=name), 5, 0)
                .weights()
                .values()
            }
            for backend, name in ((wide, "float64"), (narrow, "float32"), (wide, "float64"))
        ]
    finally:
        narrow.close()
        wide.close()
    assert dtypes == [{"float64"}, {"float32"}, {"float64"}]
    assert torch.equal(torch.get_rng_state(), before)


def test_labels_of_another_byte_order_are_measured(build: Make, make_batch: Make) -> None:
    replica, batch = build(), make_batch(7)
    wanted = replica.measure(batch.y, replica.predict(batch))
    assert replica.measure(batch.y.astype(">i4"), replica.predict(batch)) == wanted


def test_modules_of_long_series_are_exported(make_dnn: Make, make_spec: Make, tmp_path: Path) -> None:
    spec = make_spec(shape=(None, 3))
    replica = TorchBackend(precision="float64").build(make_dnn(model="torch_modules:long_series"), spec, 5, 0)
    written = write_module("DNN dnn", replica, tmp_path / "a.pt", "pt", {})
    assert written.output_shape == (5,)
    assert torch.load(tmp_path / "a.pt").keys() == replica.module.state_dict().keys()


def test_predictions_measured_again_are_the_evaluation(build: Make, make_batch: Make) -> None:
    replica, batch = build(NORMALISED), make_batch(7)
    own, again = replica.evaluate(batch), replica.measure(batch.y, replica.predict(batch))
    assert again.loss == pytest.approx(own.loss, rel=1e-9)
    assert replica.metrics(own)["accuracy"] == replica.metrics(again)["accuracy"]
