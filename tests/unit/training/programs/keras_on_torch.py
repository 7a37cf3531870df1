"""Train with Keras on its torch backend, for `test_frameworks_agree.py`: `keras_on_torch.py IN OUT`.

IN has the weights of the start, in Keras' order, and the batches; OUT gets the losses of the steps and the
weights of the end.
"""

from __future__ import annotations

import os
import sys

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import training_models

keras.config.set_floatx("float64")
given = np.load(sys.argv[1])
model = training_models.pooled((6, 6, 1), 5)
model.set_weights([given[f"weight{number}"] for number in range(len(model.weights))])
model.compile(
    keras.optimizers.SGD(0.05, momentum=0.875, nesterov=True),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
losses = []
for step in range(int(given["steps"])):
    model.reset_metrics()
    losses.append(float(model.train_on_batch(given[f"x{step}"], given[f"y{step}"])))
ended = {f"weight{number}": array for number, array in enumerate(model.get_weights())}
np.savez(sys.argv[2], losses=losses, backend=keras.backend.backend(), **ended)
