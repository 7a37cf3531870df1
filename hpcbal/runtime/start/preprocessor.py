"""Start a preprocessor rank."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.dataplane.maker import BatchMaker
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.runtime.roles.preprocessor import Preprocessor
from hpcbal.runtime.start.recipe import Prepared, Recipe


class PreprocessorRecipe(Recipe):
    """Builds a preprocessor that makes blocks from the dataset that this rank has opened."""

    def build(self, prepared: Sequence[Prepared | None]) -> None:
        context, data = self.setting.context, self.setting.data
        assert data.source is not None, "a preprocessor has the dataset"
        roles = context.roles
        topology = NodeTopology(roles.node_of_rank, roles.gateway_of_node)
        index = roles.local_producer(context.rank)
        producer = Producer(data.ring, self.setting.data_comm, topology, data.source, index)
        maker = None if data.cache is None else BatchMaker(data.facts.spec, data.source)
        num_local = roles.num_local_producers(roles.ranks[context.rank].node)
        self._role = Preprocessor(context, producer, maker, num_local, index, data.neighbours)

    def play(self) -> int:
        source = self.setting.data.source
        assert source is not None
        with self.setting.context.reading(source):
            return self._role.run()


RECIPE = PreprocessorRecipe
