"""What an app implements and receives, and the arithmetic of data blocks; see `App`."""

from hpcbal.paramserver.contract.app import (
    App,
    apply_update,
    checked_metrics,
    has_default_update,
    tables_of,
)
from hpcbal.paramserver.contract.batch import (
    Batch,
    BatchPart,
    DataBlock,
    Slices,
    gather_batch,
    scatter_state,
    whole_block,
)
from hpcbal.paramserver.contract.checks import checked_columns, checked_initial, checked_terms
from hpcbal.paramserver.contract.columns import (
    Array,
    Column,
    Columns,
    IntArray,
    Ragged,
    gather,
    num_bytes_of,
    num_samples_of,
    places_in_values,
    scatter,
    share_offsets,
)
from hpcbal.paramserver.contract.data_blocks import (
    DataBlocks,
    num_steps,
    order_of_block,
    step_samples,
    step_slice,
)
from hpcbal.paramserver.contract.randomness import rng_of_batch, rng_of_parameters, rng_of_state
from hpcbal.paramserver.contract.source import Fact, SampleSource
from hpcbal.paramserver.contract.table import Access, Table
from hpcbal.paramserver.contract.update import (
    AppError,
    Needs,
    Parameters,
    Update,
    Updates,
    checked_needs,
    checked_updates,
)

__all__ = [
    "Access",
    "App",
    "AppError",
    "Array",
    "Batch",
    "BatchPart",
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
    "Slices",
    "Table",
    "Update",
    "Updates",
    "apply_update",
    "checked_columns",
    "checked_initial",
    "checked_metrics",
    "checked_needs",
    "checked_terms",
    "checked_updates",
    "gather",
    "gather_batch",
    "has_default_update",
    "num_bytes_of",
    "num_samples_of",
    "num_steps",
    "order_of_block",
    "places_in_values",
    "rng_of_batch",
    "rng_of_parameters",
    "rng_of_state",
    "scatter",
    "scatter_state",
    "share_offsets",
    "step_samples",
    "step_slice",
    "tables_of",
    "whole_block",
]
