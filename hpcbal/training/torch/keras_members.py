"""Turn Keras models into programs of PyTorch, in a process in which Keras computes with PyTorch.

    python -m hpcbal.training.torch.keras_members JOB.json

Keras has one backend in a process, and in a run that is TensorFlow; so ranks do not import this.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import hpcbal
from hpcbal.errors import InputError

_MOST_S = 1800.0


def programs_of(files: Sequence[Path], shape: Sequence[int], dtype: str, modules: Sequence[str]) -> list[Any]:
    """Return a module of PyTorch for each of these Keras models, which takes samples as the Keras model does.

    Args:
        files: in the format `.keras`.
        shape: of one sample.
        dtype: NumPy name of the type of weights and samples.
        modules: imported first, because layers of the models are registered there.

    Raises:
        InputError: if one of them cannot be turned.
    """
    folder = files[0].parent
    programs = [path.with_suffix(".pt2") for path in files]
    job = folder / "job.json"
    job.write_text(
        json.dumps(
            {
                "files": [str(path) for path in files],
                "programs": [str(path) for path in programs],
                "shape": list(shape),
                "dtype": dtype,
                "modules": list(modules),
            }
        ),
        encoding="utf-8",
    )
    places = [str(Path(hpcbal.__file__).parents[1]), *filter(None, sys.path)]
    environ = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(job)],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_MOST_S,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise InputError(
            "the ensemble: a Keras model of it does not run on PyTorch, as .pt2 and .onnx need: "
            f"{lines[-1] if lines else f'exit code {done.returncode}'}; an ensemble of Keras models alone "
            "can go to a .keras file or a SavedModel"
        )
    return [torch.export.load(path).module() for path in programs]


def exported(module: torch.nn.Module, samples: torch.Tensor) -> torch.export.ExportedProgram:
    """Return the program of a module in inference, for any number of samples."""
    return torch.export.export(module, (samples,), dynamic_shapes=({0: torch.export.Dim("n")},), strict=False)


def _main(path: str) -> None:
    import keras

    job = json.loads(Path(path).read_text(encoding="utf-8"))
    for name in job["modules"]:
        importlib.import_module(name)

    class InInference(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, samples: torch.Tensor) -> Any:
            return self.model(samples, training=False)

    samples = torch.ones(3, *job["shape"], dtype=getattr(torch, job["dtype"]))
    keras.config.set_floatx(job["dtype"])
    for file, program in zip(job["files"], job["programs"], strict=True):
        model = keras.saving.load_model(file)
        torch.export.save(exported(InInference(model).eval(), samples), program)


if __name__ == "__main__":
    _main(sys.argv[1])
