"""The controller: carries commands out, one after another, each on the newest state.

One node is its own controller. Nothing else proposes changes of a running node's metadata; a take-over writes the first ones
of its directory, as a snapshot would, before there is a controller.
"""

from __future__ import annotations

from service.metadata.commands import Command, Result, plan
from service.metadata.log import MetadataLog
from service.metadata.planner import ConfigRules


class Controller:
    """Plans with the node's own `configs`. Not thread-safe: call it on the event loop."""

    def __init__(self, metadata: MetadataLog, configs: ConfigRules) -> None:
        self._metadata = metadata
        self._configs = configs

    async def execute(self, command: Command[Result]) -> Result:
        """The command's result, once its records are durable and applied; at once if it makes none. Raises the command's
        LogError if it cannot be carried out, else as `MetadataLog.propose` does."""
        records, result = plan(self._metadata.proposed, command, self._configs)
        if records:
            await self._metadata.propose(records)
        return result
