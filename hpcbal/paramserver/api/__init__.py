"""The interface of a user's app: all that it implements, receives and returns; see `App`."""

from hpcbal.paramserver.api.app import App, Fact, SampleSource
from hpcbal.paramserver.api.batch import Batch, DataBlock, DataBlocks, step_samples
from hpcbal.paramserver.api.columns import Array, Column, Columns, IntArray, Ragged
from hpcbal.paramserver.api.update import Access, AppError, Needs, Parameters, Table, Update, Updates

__all__ = [
    "Access",
    "App",
    "AppError",
    "Array",
    "Batch",
    "Column",
    "Columns",
    "DataBlock",
    "DataBlocks",
    "Fact",
    "IntArray",
    "Needs",
    "Parameters",
    "Ragged",
    "SampleSource",
    "Table",
    "Update",
    "Updates",
    "step_samples",
]
