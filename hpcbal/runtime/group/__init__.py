"""One rank's side of a trainer group: membership, replicas, feeding, passes."""
