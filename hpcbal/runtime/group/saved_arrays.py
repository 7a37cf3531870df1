"""Names of the arrays of a checkpoint that are not the replica's."""

SUMS_NAME = "epoch/sums"
"""The sums behind the metrics so far, in a checkpoint that was written inside a pass."""

PARTITION_PREFIX = "partition/"
"""Prefix of the arrays that say which rank holds which samples of partitioned data."""

NOT_OF_REPLICA = (SUMS_NAME, PARTITION_PREFIX)
