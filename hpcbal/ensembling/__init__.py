"""Predictions of trained DNNs together: their answers, how good these are, and which DNNs to combine."""
