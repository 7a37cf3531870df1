"""What `hpcbal run` and the ranks that it starts leave for each other: request, launch files, the end."""
