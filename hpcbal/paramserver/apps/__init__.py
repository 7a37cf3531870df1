"""Apps that come with hpcbal, and datasets for them."""

from hpcbal.paramserver.apps.dense_nmf import DenseNMF
from hpcbal.paramserver.apps.from_dataset import labelled, pixels, regression, samples
from hpcbal.paramserver.apps.generated import (
    generated_classes,
    generated_documents,
    generated_ratings,
    generated_regression,
)
from hpcbal.paramserver.apps.lasso import Lasso
from hpcbal.paramserver.apps.lda import LDA
from hpcbal.paramserver.apps.mlr import MLR
from hpcbal.paramserver.apps.nmf import NMF
from hpcbal.paramserver.apps.sources import library_texts

__all__ = [
    "LDA",
    "MLR",
    "NMF",
    "DenseNMF",
    "Lasso",
    "generated_classes",
    "generated_documents",
    "generated_ratings",
    "generated_regression",
    "labelled",
    "library_texts",
    "pixels",
    "regression",
    "samples",
]
