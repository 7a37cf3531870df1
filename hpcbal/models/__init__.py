"""Networks to train: `model: hpcbal.models:<name>` in the config."""

from hpcbal.models.densenet import densenet
from hpcbal.models.resnet import resnet
from hpcbal.models.series import recurrent, temporal_cnn
from hpcbal.models.small import mlp, unet
from hpcbal.models.softmax import EmulatedModel, softmax

__all__ = ["EmulatedModel", "densenet", "mlp", "recurrent", "resnet", "softmax", "temporal_cnn", "unet"]
