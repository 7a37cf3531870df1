"""Call an exported ensemble where neither hpcbal nor Keras exists: MODEL SAMPLES OUTPUTS."""

import sys
import warnings

sys.modules["hpcbal"] = sys.modules["keras"] = None

import numpy as np  # noqa: E402

model, samples = sys.argv[1], np.load(sys.argv[2])
if model.endswith(".onnx"):
    import onnxruntime

    outputs = onnxruntime.InferenceSession(model).run(None, {"samples": samples})[0]
else:
    import torch

    warnings.simplefilter("ignore")
    outputs = torch.export.load(model).module()(torch.from_numpy(samples)).detach().numpy()
np.save(sys.argv[3], outputs)
