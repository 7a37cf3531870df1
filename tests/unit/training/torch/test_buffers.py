"""Buffers, gradients and files that are unusual, but not rare, give right numbers or one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_buffers

from hpcbal.config.schema.objective import LossConfig
from hpcbal.errors import InputError, UserCodeError
from hpcbal.training.backend import LocalCollective
from hpcbal.training.initial_weights import initial_weights, layers_of_checkpoint
from hpcbal.training.step import train_step
from hpcbal.training.torch.backend import TorchBackend
from hpcbal.training.torch.files import read_state_dict
from hpcbal.training.weights import layers_by_name

Make = Callable[..., Any]


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Make:
    def make(model: str, **given: Any) -> Any:
        dnn = make_dnn(model=f"torch_buffers:{model}", **{"momentum": 0.0, **given})
        args = dnn.args.pop("given", {})
        dnn.optimizer.args.update(args)
        return TorchBackend(precision="float64").build(dnn, make_spec(), 5, 0)

    return make


def test_whole_numbers_and_passing_buffers_stay(build: Make, make_batch: Make) -> None:
    replica = build("counting_steps")
    assert "persistent=False): steps, passing" in replica.warnings[0]
    replica.compute(make_batch(4), 8)
    train_step(replica, make_batch(4), 4, LocalCollective())
    assert int(replica.module.steps) == 0
    assert float(replica.module.passing) == 0.0


def test_a_buffer_that_grows_does_not_travel(build: Make, make_batch: Make) -> None:
    replica = build("growing")
    assert not replica.warnings
    shapes = [tensor.shape for tensor in replica.zeros().tensors]
    assert [tensor.shape for tensor in replica.compute(make_batch(8), 8).tensors] == shapes


def test_a_buffer_keeps_no_graph(build: Make, make_batch: Make) -> None:
    replica = build("centred")
    for step in range(3):
        train_step(replica, make_batch(4, step), 4, LocalCollective())
        assert not replica.module._buffers["mean"].requires_grad
    replica.apply(replica.compute(make_batch(4), 4).tensors)
    replica.compute(make_batch(4), 4)
    assert float(replica.module.mean.abs().sum()) > 0.0


def test_statistics_after_a_layer_of_zeros_travel(build: Make, make_batch: Make) -> None:
    replica = build("after_zeros")
    assert {buffer.path for buffer in replica._statistics._moving} == {"1.running_mean", "1.running_var"}
    train_step(replica, make_batch(4), 4, LocalCollective())
    before = replica.weights()["weights/1.running_mean"]
    replica.compute(make_batch(4, 1), 8)
    np.testing.assert_array_equal(replica.weights()["weights/1.running_mean"], before)


def test_the_counter_of_a_frozen_layer_stays(build: Make, make_batch: Make) -> None:
    replica = build("after_zeros", freeze=("1",))
    replica.apply(replica.compute(make_batch(4), 4).tensors)
    assert int(replica.weights()["weights/1.num_batches_tracked"]) == 0


def test_buffers_of_another_type_travel_as_weights_do(build: Make, make_batch: Make) -> None:
    replica = build("in_halves")
    found = replica.compute(make_batch(4), 4).tensors
    assert {tensor.dtype for tensor in (*found, *replica.zeros().tensors)} == {torch.float64}
    replica.apply(found)
    assert replica.weights()["weights/mean"].tolist() == [1.0, 1.0]


def test_a_buffer_without_memory_of_its_own_gets_it(build: Make) -> None:
    replica = build("spread")
    replica.load_state({**replica.state(), "weights/constant": np.arange(5.0)})
    assert replica.weights()["weights/constant"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("given", [{}, {"fused": True}, {"foreach": True}])
@pytest.mark.parametrize("model", ["sums", "convolutions"])
def test_gradients_have_memory_of_their_own(build: Make, make_batch: Make, model: str, given: Any) -> None:
    """Clipping scales in place, and fused optimizers read gradients in the order of the weights."""
    replica = build(model, optimizer="adam", learning_rate=0.01, clip_norm=0.01, given=given)
    module = getattr(torch_buffers, model)((1, 6, 6), 5).double()
    module.load_state_dict({name[8:]: torch.from_numpy(a) for name, a in replica.weights().items()})
    plain = torch.optim.Adam(module.parameters(), lr=0.01)
    for step in range(2):
        batch = make_batch(6, step)
        train_step(replica, batch, 6, LocalCollective())
        outputs = module(torch.from_numpy(batch.x).permute(0, 3, 1, 2))
        torch.nn.functional.cross_entropy(outputs, torch.from_numpy(batch.y)).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01)
        plain.step()
        plain.zero_grad()
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(replica.weights()[f"weights/{name}"], tensor.numpy(), atol=1e-12)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("auxiliary", r"returns tuple in training, allowed: one tensor of shape \(3, 5\)"),
        ("detached", r"do not depend on a weight to train, .* remove detach\(\)"),
        ("noisy", r"changes its samples in place, allowed: leave them"),
        ("extra", r"_extra_state in its state_dict is a dict, allowed: tensors"),
        ("in_bfloat16", r"constant has the type bfloat16, allowed: a type that NumPy has"),
    ],
)
def test_what_cannot_be_trained_or_saved_is_refused(build: Make, model: str, words: str) -> None:
    with pytest.raises(InputError, match=f"model torch_buffers:{model}.*{words}"):
        build(model)


def test_settings_that_exclude_each_other(build: Make) -> None:
    with pytest.raises(InputError, match="optimizer adam: `fused` and `foreach` cannot"):
        build("sums", optimizer="adam", given={"fused": True, "foreach": True})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own modules
def test_a_compiled_module_is_refused(build: Make) -> None:
    with pytest.raises(
        InputError, match=r"returned a module of torch\.compile, allowed: the module that was"
    ):
        build("compiled")


def test_an_optimizer_whose_first_step_fails(build: Make) -> None:
    with pytest.raises(UserCodeError, match=r"a first step of its optimizer adam failed: .*leaf"):
        build("sums", optimizer="adam", given={"differentiable": True})


def test_a_loss_that_changes_shared_labels_is_refused(build: Make) -> None:
    loss = LossConfig.model_validate({"name": "torch_buffers:loss_that_marks"})
    with pytest.raises(InputError, match="the loss or a metric changes labels in place, allowed: leave them"):
        build("sums", loss=loss)


def test_files_of_parameters_and_of_short_numbers(tmp_path: Path) -> None:
    path, module = tmp_path / "weights.pt", torch.nn.Linear(3, 2)
    torch.save({"a": module.weight, "b": torch.ones(2).to(torch.float8_e4m3fn)}, path)
    found = read_state_dict(path)
    np.testing.assert_array_equal(found["a"], module.weight.detach().numpy())
    assert found["b"].tolist() == [1.0, 1.0]


def test_what_is_no_file_of_weights(tmp_path: Path) -> None:
    text, whole = tmp_path / "text.pt", tmp_path / "whole.pt"
    text.write_text("hello")
    with pytest.raises(InputError, match="not a whole file of PyTorch"):
        read_state_dict(text)
    cut = tmp_path / "cut.pt"
    torch.save({"a": torch.ones(300)}, cut)
    cut.write_bytes(cut.read_bytes()[:-100])
    for path in (text, cut):
        with pytest.raises(InputError) as caught:
            read_state_dict(path)
        assert str(caught.value) == (
            f"{path}: it is not a whole file of PyTorch: it was cut off, or is of another kind; allowed: the "
            "state_dict of a module: torch.save(module.state_dict(), path)"
        )
    torch.save(torch.nn.Linear(3, 2), whole)
    with pytest.raises(InputError, match="more than weights, such as a whole module") as caught:
        read_state_dict(whole)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_arrays_of_a_layer_that_is_found_by_its_name_keep_theirs(tmp_path: Path) -> None:
    """A file of safetensors has its names in the order of the alphabet: bias before weight."""
    own = {"weights/a.norm.weight": np.ones(3, np.float32), "weights/a.norm.bias": np.zeros(3, np.float32)}
    path = tmp_path / "x.pt"
    torch.save({"b.norm.bias": torch.full((3,), -1.0), "b.norm.weight": torch.full((3,), 7.0)}, path)
    held = {f"weights/{name}": array for name, array in read_state_dict(path).items()}
    found = initial_weights(layers_by_name(own), own, layers_of_checkpoint(held)).arrays
    assert {name: float(array[0]) for name, array in found.items()} == {
        "weights/a.norm.weight": 7.0,
        "weights/a.norm.bias": -1.0,
    }
