"""Load exported models where hpcbal does not exist, and print their outputs: FILE of samples, then models."""

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.modules["hpcbal"] = None  # any import of it fails

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

outputs = {}
for model, samples in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    is_graph = os.path.isdir(model)
    loaded = tf.saved_model.load(model) if is_graph else keras.models.load_model(model)
    call = loaded.serve if is_graph else loaded
    outputs[model] = np.asarray(call(np.load(samples))).tolist()
json.dump(outputs, sys.stdout)
