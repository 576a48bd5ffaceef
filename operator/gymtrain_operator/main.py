"""Starts the operator process."""

import asyncio
import sys
from collections.abc import Sequence

from gymtrain_kube.errors import KubeError
from gymtrain_operator import log, metrics
from gymtrain_operator.child_cache import ChildCache
from gymtrain_operator.errors import LostLeaseError, OperatorError
from gymtrain_operator.health import Health, served
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.leadership import Leadership
from gymtrain_operator.lease import Fence
from gymtrain_operator.observe import Observer
from gymtrain_operator.options import Options, parse
from gymtrain_operator.probes import probing_session
from gymtrain_operator.rate_limit import RateLimit
from gymtrain_operator.reconciler import Reconciler
from gymtrain_operator.selected_namespaces import SelectedNamespaces
from gymtrain_operator.service import Service
from gymtrain_operator.watching import stop_at_signals


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the operator until SIGTERM. Returns the exit code."""
    options = parse(sys.argv[1:] if argv is None else argv)
    log.set_up(options.log_level, options.log_format)
    code = 0
    health = Health()
    try:
        with served(health, options.port):
            asyncio.run(_serve(options, health))
    except* LostLeaseError as lost:
        log.logger().error("no longer the leader", error=str(lost.exceptions))
        code = 1
    except* (OperatorError, KubeError) as error:
        log.logger().error("can't continue", error=str(error.exceptions))
        code = 1
    return code


async def _serve(options: Options, health: Health) -> None:
    stop = asyncio.Event()
    stop_at_signals(stop)
    heartbeats = asyncio.create_task(health.loop.send_heartbeats())
    cache = ChildCache()
    limit = RateLimit(options.kube_api_qps, options.kube_api_burst)
    fence = Fence()
    cluster = KubeClient.connect(
        health.hear,
        on_write=cache.put_own,
        limit=limit,
        before_write=fence.check,
        unacknowledged_seconds=options.lease_times.margin if options.leader_elect else None,
    )
    try:
        async with probing_session() as session:
            observer = Observer(cluster, session, options.defaults, cache)
            reconciler = Reconciler(cluster, observer, options.defaults, full_looks=options.workers)
            selector = options.namespace_selector
            service = Service(
                cluster,
                reconciler,
                options.namespaces,
                health,
                cache,
                selected=SelectedNamespaces(cluster, selector) if selector else None,
                with_kueue=options.defaults.kueue,
            )
            await _lead(options, cluster, fence, service, health, stop)
    finally:
        heartbeats.cancel()
        await cluster.close()


async def _lead(
    options: Options, cluster: KubeClient, fence: Fence, service: Service, health: Health, stop: asyncio.Event
) -> None:
    """Runs the service, only as the leader if there is an election."""
    if not options.leader_elect:
        metrics.LEADER.set(1)
        await service.run(options.workers, stop)
        return
    namespace = options.lease_namespace or cluster.namespace
    leadership = Leadership(cluster, namespace, options.identity, options.lease_times, fence)
    health.ready = True  # a standby is ready: a rollout must not wait for the old leader's end
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(leadership.acquire())
        stopped = group.create_task(stop.wait())
        await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            waiting.cancel()
            return
        renewing = group.create_task(leadership.keep_renewing())
        await service.run(options.workers, stop)
        renewing.cancel()
    await leadership.release()
