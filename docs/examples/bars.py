"""A dataset and a network as for plain PyTorch; hpcbal takes both as they are."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset


class Bars(Dataset):
    """Noise with one bar. Images are as from torchvision's ToTensor: float32, (channels, height, width)."""

    classes = ("horizontal", "vertical")

    def __init__(self, num_samples=480, size=8):
        self.num_samples, self.size = num_samples, size

    def __len__(self):
        return self.num_samples

    def __getitem__(self, number):
        random = np.random.default_rng(number)
        image = 0.8 * random.random((1, self.size, self.size), np.float32)
        label = number % len(self.classes)
        (image[0].T if label else image[0])[random.integers(self.size)] = 1.0
        return torch.from_numpy(image), label


def cnn(input_shape, num_classes, width=8):
    """`input_shape` is (channels, height, width), and so are the images of a batch."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * width, num_classes),
    )
