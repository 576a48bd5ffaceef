"""The world of the half without containers: a real API server with its controllers, nodes that are played, the operator
as a process behind a network and a proxy that break, and runs that come and go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

from tests.chaos.memory import sample
from tests.chaos.population import Population
from tests.chaos.story import drawn_life
from tests.support.apiserver import ApiServer, binary
from tests.support.breakable_node import BreakableNode
from tests.support.broken_api import BrokenApi
from tests.support.cuttable import CuttableNetwork
from tests.support.install import CRD, DEFAULTS_CRD, OPERATOR_NAMESPACE, install_crd, token_of_chart
from tests.support.kubectl import Kubectl
from tests.support.operator import OperatorProcess
from tests.support.rest import Rest

NAMESPACES = ("chaos-one", "chaos-two", "chaos-three")
_CONTROLLERS = ("disruption",)  # evictions ask it
_SAMPLE_SECONDS = 2.0


class ApiWorld(Population):
    """What faults break and runs live in; `api_world` makes it.

    Attributes:
        operator_may_end: whether a fault ends the operator just now.
    """

    def __init__(self, server: ApiServer, folder: Path, seed: int, stack: ExitStack) -> None:
        super().__init__(Rest.of_server(server), NAMESPACES, lambda number: drawn_life(seed, number, NAMESPACES))
        self.server = server
        self.log = folder / "operator.log"
        self.node = stack.enter_context(BreakableNode(server, seed))
        self.api = stack.enter_context(BrokenApi(server, seed))
        self.network = stack.enter_context(CuttableNetwork(self.api.port))
        url = f"https://127.0.0.1:{self.network.port}"
        kubeconfig = server.kubeconfig_for("operator", token_of_chart(server), url)
        self.operator = OperatorProcess(kubeconfig, self.log)
        self.operator_may_end = False

    async def server_is_back(self) -> None:
        """Waits until the API server is ready."""
        while True:
            if await asyncio.to_thread(lambda: self.server.is_ready):
                return
            await asyncio.sleep(0.2)

    async def leftovers(self) -> list[str]:
        """What is left, also by a garbage collector that has just started. One that runs may have forgotten it: where a
        run went and another of its name came while the API server was away, it saw one run change."""
        left = await super().leftovers()
        if not left:
            return []
        await asyncio.to_thread(self.server.restart, "kube-controller-manager")
        still = await super().leftovers()
        if forgotten := sorted(set(left) - set(still)):
            self.notes.append(f"collected only after the controllers started again: {', '.join(forgotten)}")
        return still

    async def watch_the_operator(self) -> None:
        """Takes samples of its memory, and starts it again where it ended by itself, as the kubelet does."""
        while True:
            process = self.operator.process
            if process.poll() is not None and not self.operator_may_end and process is self.operator.process:
                tail = self.log.read_text(errors="replace")[-1500:]
                self.wrong.append(f"the operator ended by itself with {process.returncode}: {tail}")
                self.operator.launch()
            elif (found := sample(process.pid)) is not None:
                self.samples.append(found)
            await asyncio.sleep(_SAMPLE_SECONDS)


@asynccontextmanager
async def api_world(folder: Path, seed: int) -> AsyncIterator[ApiWorld]:
    """The world, up to the end of the block."""
    with ApiServer(folder) as server, ExitStack() as stack:
        for crd in (CRD, DEFAULTS_CRD):
            install_crd(server, crd)
        admin = Kubectl(str(server.kubeconfig), OPERATOR_NAMESPACE, binary("kubectl"))
        for namespace in (OPERATOR_NAMESPACE, *NAMESPACES):
            admin.run("create", "namespace", namespace)
        server.start_controllers(*_CONTROLLERS)
        world = ApiWorld(server, folder, seed, stack)
        async with AsyncExitStack() as more:
            await more.enter_async_context(world.rest)
            await asyncio.to_thread(world.operator.start)
            stack.callback(world.operator.stop)
            yield world
