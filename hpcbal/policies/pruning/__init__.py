"""Which DNNs of an ensemble train on, wait for others, or stop early: `Asha`, `Median` and `Committee`."""
