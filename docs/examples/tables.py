"""Own data: files of NumPy, or a CSV file."""

import numpy as np

from hpcbal.data import LabelSpec, SampleSpec


class Arrays:
    """Two .npy files: samples, shape (n, ...), and classes 0, 1, ..., shape (n,)."""

    label_spec = LabelSpec()  # one class per sample

    def __init__(self, samples, labels):
        self.samples = np.load(samples, mmap_mode="r")  # stays on disk
        self.labels = np.load(labels)
        self.num_classes = int(self.labels.max()) + 1
        self.sample_spec = SampleSpec.of(self.samples.shape[1:], self.samples.dtype)

    def __len__(self):
        return len(self.labels)

    def read(self, sample_id):
        return np.array(self.samples[sample_id]), self.labels[sample_id]

    def describe(self, sample_id):
        return f"row {sample_id}"


class Table(Arrays):
    """A CSV file with a line of names: the class is in the column `label`, numbers are in all others."""

    def __init__(self, path, label):
        rows = np.genfromtxt(path, delimiter=",", names=True, dtype=None, encoding="utf-8")
        columns = np.stack([rows[name] for name in rows.dtype.names if name != label], axis=1)
        self.samples = ((columns - columns.mean(axis=0)) / columns.std(axis=0)).astype("float32")
        names, self.labels = np.unique(rows[label], return_inverse=True)
        self.class_names = [str(name) for name in names]
        self.num_classes = len(names)
        self.sample_spec = SampleSpec.of(self.samples.shape[1:], "float32")
