"""Write an ensemble as one program of PyTorch or as ONNX; Keras models in it become modules of PyTorch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from hpcbal.errors import InputError
from hpcbal.training.committee import Committee, WrittenCommittee, times_as_long
from hpcbal.training.groups import USER_ERRORS
from hpcbal.training.rank_share import IMAGE_RANK
from hpcbal.training.torch.files import (
    NOT_CHECKED,
    check_onnx_packages,
    onnx_outputs,
    quiet_exporter,
    save_onnx,
)
from hpcbal.training.torch.keras_members import exported, programs_of
from hpcbal.training.torch.replica import TorchReplica
from hpcbal.training.weights import Array
from hpcbal.user_code import summary


class Combined(torch.nn.Module):
    """Samples to the weighted mean of the members' predictions.

    Args:
        committee: members, their shares, and what is in front of them.
        modules: of the members; those of PyTorch take images with the channels first.
    """

    def __init__(self, committee: Committee, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.members = torch.nn.ModuleList(modules)
        self._moves = [member.is_torch and len(committee.shape) == IMAGE_RANK for member in committee.members]
        self._link = committee.link
        self._dtype = getattr(torch, committee.dtype)
        self._num_affines = len(committee.affines)
        for number, affine in enumerate(committee.affines):
            dtype = getattr(torch, affine.dtype)
            self.register_buffer(f"factor_{number}", torch.as_tensor(affine.factor, dtype=dtype))
            self.register_buffer(f"shift_{number}", torch.as_tensor(affine.shift, dtype=dtype))
        self._shares = [member.share for member in committee.members]

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        for number in range(self._num_affines):
            factor, shift = getattr(self, f"factor_{number}"), getattr(self, f"shift_{number}")
            samples = samples.to(factor.dtype) * factor - shift
        samples = samples.to(self._dtype)
        parts = []
        for module, moves, share in zip(self.members, self._moves, self._shares, strict=True):
            outputs = module(samples.permute(0, 3, 1, 2) if moves else samples).to(self._dtype)
            if self._link == "softmax":
                outputs = outputs.softmax(-1)
            elif self._link == "sigmoid":
                outputs = outputs.sigmoid()
            parts.append(share * outputs)
        return torch.stack(parts).sum(0)


def write_committee(
    committee: Committee, path: Path, format_name: str, samples: Array, wanted: Array
) -> WrittenCommittee:
    """Write an ensemble, and check that what was written predicts as its members do.

    Args:
        committee: of modules of PyTorch, Keras models, or both.
        path: of the file.
        format_name: `pt2` for a program of `torch.export`, or `onnx`.
        samples: as the model takes them, shape (n, *sample shape), n >= 2; images have their channels last.
        wanted: the weighted mean of what the members predict for them, shape (n, ...).

    Raises:
        InputError: if the ensemble cannot be written this way, or predicts something else.
        OSError: if it cannot be written.
    """
    who = "the ensemble"
    if format_name == "onnx":
        check_onnx_packages(who, "write a program of PyTorch: --to FILE.pt2")
    given = torch.from_numpy(samples)
    modules = _modules_of(committee)
    combined = Combined(committee, modules)  # each member is in inference
    try:
        with torch.no_grad(), quiet_exporter():
            program = exported(combined, given)
            if format_name == "onnx":
                save_onnx(program, given, path)
            else:
                torch.export.save(program, path)
    except OSError:
        raise
    except USER_ERRORS as error:
        other = ".pt2" if format_name == "onnx" else ".onnx"
        raise InputError(
            f"{who} cannot be written as {path.suffix}: {summary(error).splitlines()[0]}; a member's forward "
            f"may depend on values of its samples, which neither {path.suffix} nor {other} can hold; leave "
            "that member out of the evaluation with --dnns"
        ) from error
    notes = []
    found: Array | None
    if format_name == "onnx":
        found = onnx_outputs(path, samples)
        if found is None:
            notes.append(NOT_CHECKED)
    else:
        with torch.no_grad(), quiet_exporter():
            loaded: Any = torch.export.load(path).module()
            found = loaded(given).numpy()
    with torch.no_grad():
        own = combined(given).numpy() if found is None else found
        alone = Combined(
            replace(committee, members=[committee.members[committee.best]]), [modules[committee.best]]
        )
        cost = times_as_long(lambda: combined(given), lambda: alone(given))
    difference = committee.difference(who, own.astype("float64"), wanted)
    return WrittenCommittee(tuple(own.shape[1:]), difference, cost, notes=tuple(notes))


def _modules_of(committee: Committee) -> list[torch.nn.Module]:
    """Return the members as modules, in order."""
    with tempfile.TemporaryDirectory(prefix="hpcbal-") as folder:
        files: list[Path] = []
        needed: set[str] = set()
        for number, member in enumerate(committee.members):
            if member.is_torch:
                continue
            from hpcbal.training.keras.committee import plain_member
            from hpcbal.training.keras.plain_model import save_keras

            model, modules = plain_member(member, committee.shape, committee.dtype)
            needed.update(modules)
            files.append(Path(folder) / f"{number}.keras")
            save_keras(model, files[-1])
        turned = programs_of(files, committee.shape, committee.dtype, sorted(needed)) if files else []
    of_keras = iter(turned)
    found = []
    for member in committee.members:
        if member.is_torch:
            replica = cast("TorchReplica", member.replica)
            replica.set_training(False)
            found.append(replica.module)
        else:
            found.append(next(of_keras))
    return found
