"""Networks to train: `model: hpcbal.models:<name>` in the config."""

from hpcbal.models.densenet import densenet
from hpcbal.models.resnet import resnet
from hpcbal.models.softmax import EmulatedModel, softmax

__all__ = ["EmulatedModel", "densenet", "resnet", "softmax"]
