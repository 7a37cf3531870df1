"""How `hpcbal run` and the ranks that it starts communicate: the request, launch files, the end."""
