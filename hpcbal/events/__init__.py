"""The one vocabulary of a run: what happens and what is to do, each a line of the ledger."""
