"""Jobs on parameter servers in virtual time: the machines of a real job, driven frame by frame."""
