"""Which parameter-server jobs share machines, and how many ([PS] Ch. 4)."""
