"""An own app for parameter servers: complete a matrix of which few entries are known."""

import numpy as np

from hpcbal.paramserver.api import App, Ragged, Table


class Entries:
    """Rows of a matrix of rank 3, 10 known entries each. Samples that are files would be opened in `read`."""

    def __init__(self, num_rows=2000, num_columns=100):
        self.num_samples, self.facts = num_rows, {"num_columns": num_columns}
        self._columns = np.random.default_rng(0).normal(size=(num_columns, 3))

    def read(self, samples):
        known, values = [], []
        for sample in samples:
            rng = np.random.default_rng([1, sample])  # the same sample in every process
            known.append(np.sort(rng.choice(len(self._columns), 10, replace=False)))
            values.append(self._columns[known[-1]] @ rng.normal(size=3))
        return {"known": Ragged.of(known), "values": Ragged.of(values)}


class Completion(App):
    """Entry (i, j) is rows[i] . columns[j]. Workers keep `rows`, servers hold the table `columns`."""

    def __init__(self, source, rank=4, learning_rate=0.5, ridge=0.01):
        super().__init__(source)
        self.rank, self.learning_rate, self.ridge = rank, learning_rate, ridge

    def tables(self):
        return [Table("columns", self.source.facts["num_columns"], self.rank, access="sparse")]

    def initial(self, table, rows, rng):
        return rng.normal(size=(len(rows), self.rank))

    def initial_state(self, columns, rng):
        return {"rows": np.zeros((len(columns["known"]), self.rank))}

    def needs(self, batch):
        return {"columns": np.unique(batch.ragged("known").values)}

    def compute(self, batch, parameters):
        """Solve for each row, then take a gradient step of the columns."""
        ids, rows, values = self.needs(batch)["columns"], batch.array("rows"), batch.ragged("values")
        deltas = np.zeros_like(parameters["columns"])
        # A mean divides by the samples of the whole step, over all workers.
        rate = self.learning_rate * self.source.facts["num_columns"] / batch.step_samples
        for i, known in enumerate(batch.ragged("known")):
            places = np.searchsorted(ids, known)
            columns = parameters["columns"][places]
            gram = columns.T @ columns + self.ridge * np.eye(self.rank)
            rows[i] = np.linalg.solve(gram, columns.T @ values[i])
            errors = values[i] - columns @ rows[i]
            deltas[places] += rate / len(known) * np.outer(errors, rows[i])
        return {"columns": deltas}

    def objective(self, batch, parameters):
        ids, rows, values = self.needs(batch)["columns"], batch.array("rows"), batch.ragged("values")
        squares = 0.0
        for i, known in enumerate(batch.ragged("known")):
            errors = values[i] - parameters["columns"][np.searchsorted(ids, known)] @ rows[i]
            squares += errors @ errors
        return {"squares": squares, "entries": len(values.values)}

    def metrics(self, sums):
        return {"rmse": (sums["squares"] / sums["entries"]) ** 0.5}
