"""Call an exported ensemble where neither hpcbal nor Keras exists: MODEL SAMPLES OUTPUTS.

First with one sample, then with all.
"""

import sys
import warnings

sys.modules["hpcbal"] = sys.modules["keras"] = None

import numpy as np  # noqa: E402

model, samples = sys.argv[1], np.load(sys.argv[2])
if model.endswith(".onnx"):
    import onnxruntime

    session = onnxruntime.InferenceSession(model)
    outputs = [session.run(None, {"samples": some})[0] for some in (samples[:1], samples)]
else:
    import torch

    warnings.simplefilter("ignore")
    program = torch.export.load(model).module()
    outputs = [program(torch.from_numpy(some)).detach().numpy() for some in (samples[:1], samples)]
np.savez(sys.argv[3], one=outputs[0], all=outputs[1])
