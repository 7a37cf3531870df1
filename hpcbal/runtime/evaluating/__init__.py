"""`hpcbal evaluate`: predictions of trained DNNs, divided over the ranks at hand."""
