"""Networks of PyTorch: `model: hpcbal.models.torch:<name>` in the config."""

from hpcbal.models.torch.images import densenet, resnet
from hpcbal.models.torch.small import mlp, recurrent

__all__ = ["densenet", "mlp", "recurrent", "resnet"]
