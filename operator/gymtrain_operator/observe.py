"""Observing a run: what the API server and the run's pods say, as one `Observation`.

What the run owns is read from the cache. It is asked of the API server at the first look, while the cache isn't
current, and when an attempt has ended: the watch of its pods, whose exit codes say why, may be behind that of its Job.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import aiohttp
from pydantic import BaseModel

from gymtrain_api import labels, names
from gymtrain_api.pods import phase
from gymtrain_api.record import read_record
from gymtrain_api.runs import InvalidRunError, parse_spec, parse_status
from gymtrain_api.transports import ServerOffer
from gymtrain_api.wiring import GymPreflight, InferencePreflight, TrainerPreflight, TrainerProgress
from gymtrain_kube.errors import KubeError, NotFoundError, RejectedError, UnreadLogError
from gymtrain_operator import kinds
from gymtrain_operator.child_cache import ChildCache
from gymtrain_operator.errors import OversizedAnswerError, ProbeError
from gymtrain_operator.kinds import Kind, Object
from gymtrain_operator.kube_client import KubeClient
from gymtrain_operator.manifests.context import Defaults
from gymtrain_operator.manifests.inference import CONTAINER as INFERENCE_CONTAINER
from gymtrain_operator.manifests.preflight import GYM_CONTAINER, TRAINER_CONTAINER, preflight_hash
from gymtrain_operator.manifests.preflight import INFERENCE_CONTAINER as PREFLIGHT_INFERENCE
from gymtrain_operator.manifests.volumes import is_kept
from gymtrain_operator.namespace_defaults import NamespaceReader
from gymtrain_operator.probes import server_offer, trainer_progress
from gymtrain_operator.queueing import QueueObserver, may_be_queued, priority_class_of, queue_of, waits
from gymtrain_operator.reconcile.admission import admitted_spec
from gymtrain_operator.reconcile.attempts import current_attempt, trainer_pods
from gymtrain_operator.reconcile.defaulting import current_defaults, keeps_defaults, new_context, objects_of_defaults
from gymtrain_operator.reconcile.lifecycle import has_ended
from gymtrain_operator.reconcile.observation import (
    AgentSandbox,
    Children,
    Observation,
    PreflightOutput,
    Run,
    is_deleting,
    is_finished,
    is_left,
    labels_of,
    name_of,
    uid_of,
)
from gymtrain_operator.reconcile.pod_diagnosis import LogRef, has_started, is_over, tail, terminated, wanted_tails
from gymtrain_operator.reconcile.preflight import named_objects, printed_verdict, stored_verdict
from gymtrain_operator.reconcile.sandbox_backend import INSTALL, MISSING

# The verdict comes last, and the ConfigMap that keeps it holds 1 MiB: 64 lines, as runtimes store them in parts of
# 16 KiB. What else a container prints, before it and in the threads that are left, may be as long again.
_VERDICT_LINES = 160
_LOGS_AT_ONCE = 2  # a log is some 2.5 MiB, and four times that where it has characters of other planes
_KEPT_TAILS = 200
_TAIL_LINES = 40  # more than are shown: empty lines don't count


class Observer:
    """Reads everything about a run. Logs of failed containers never change and are kept."""

    def __init__(
        self,
        cluster: KubeClient,
        session: aiohttp.ClientSession,
        defaults: Defaults,
        cache: ChildCache | None = None,
    ) -> None:
        """Without a cache all objects are asked of the API server at each look."""
        self._cluster = cluster
        self._session = session
        self._defaults = defaults
        self._namespaces = NamespaceReader(cluster)
        self._queues = QueueObserver(cluster, defaults)
        self._cache = cache or ChildCache()
        self._tails: dict[LogRef, str] = {}
        self._logs_at_once = asyncio.Semaphore(_LOGS_AT_ONCE)

    async def observe(self, found: Object, now: float, *, resync: bool) -> Observation:
        """Reads everything about the run whose object is `found`.

        Raises:
            KubeError: the API server didn't answer; pods that don't answer are no error.
        """
        run = read_run(found)
        held = self._cache.holds((run.namespace, run.name))
        children = await self._children(run)
        untouched = self._cache.untouched((run.namespace, run.name)) if resync and held else frozenset[str]()
        seen = Observation(run=run, now=now, children=children, resync=resync, untouched=untouched)
        if held and _attempt_has_ended(seen):
            children = await self._children(run, afresh=True)
            seen = replace(seen, children=children)
        if run.deleting or run.spec is None:
            return seen
        if not keeps_defaults(run):
            first = run.status.observed_generation is None
            seen = replace(seen, namespace=await self._namespaces.read(run.namespace, now, afresh=first))
            if not run.names_queue:
                run = replace(run, queue=current_defaults(seen, self._defaults).queue_name or "")
                seen = replace(seen, run=run)
        if has_ended(run.status):
            return seen
        verdict = stored_verdict(children, run.name)
        attempt = current_attempt(seen, run.status)
        output = None if verdict else await self._preflight_output(seen)
        missing = () if verdict else await self._missing(seen)
        progress, (offers, oversized), agent_sandbox, tails = await asyncio.gather(
            self._progress(seen),
            self._offers(run, children),
            self._agent_sandbox(seen),
            self._log_tails(run, children, attempt),
        )
        return replace(
            seen,
            verdict=verdict,
            preflight_output=output,
            missing=missing,
            progress=progress,
            offers=offers,
            oversized=oversized,
            agent_sandbox=agent_sandbox,
            flavors=await self._queues.flavors(run, children),
            priority=await self._queues.priority(run),
            log_tails=tails,
        )

    def follows(self, run: Run) -> bool:
        """Whether each change of what a run owns is an event, so that a look at it holds until there is one."""
        return self._cache.holds((run.namespace, run.name)) and not _may_have_groups(run)

    def forget(self, namespace: str, name: str) -> None:
        """Forgets the objects of a run that has ended or is gone."""
        self._cache.drop((namespace, name))

    async def ask_again(self, seen: Observation) -> Observation:
        """Returns the observation with new answers of the run's pods; the objects are not read again."""
        progress, (offers, oversized), agent_sandbox = await asyncio.gather(
            self._progress(seen), self._offers(seen.run, seen.children), self._agent_sandbox(seen)
        )
        return replace(seen, progress=progress, offers=offers, oversized=oversized, agent_sandbox=agent_sandbox)

    async def _agent_sandbox(self, seen: Observation) -> AgentSandbox | None:
        """Asks what the cluster offers of agent-sandbox, until the broker is there."""
        run = seen.run
        assert run.spec is not None
        if not _may_use_agent_sandbox(run) or seen.children.get("Deployment", names.broker(run.name)):
            return None
        if not await self._cluster.serves(kinds.AGENT_SANDBOX):
            return AgentSandbox(served=False)
        try:
            probe = await self._cluster.get(kinds.SANDBOX_POOL, run.namespace, names.sandbox_probe(run.name))
        except NotFoundError:
            return AgentSandbox(served=True)
        except RejectedError as error:
            return AgentSandbox(served=True, forbidden=str(error))
        return AgentSandbox(served=True, probe=probe if _owned_by(probe, {run.uid}) else None)

    async def _progress(self, seen: Observation) -> TrainerProgress | None:
        """Asks the trainer for its report; None while it doesn't answer."""
        attempt = current_attempt(seen, seen.run.status)
        pods = trainer_pods(seen, attempt)
        ip = _ip_of(pods[0]) if pods and phase(pods[0]) == "Running" else ""
        if not ip:
            return None
        try:
            return await trainer_progress(self._session, ip)
        except ProbeError:
            return None

    async def _children(self, run: Run, *, afresh: bool = False) -> Children:
        cached = None if afresh else self._cache.read((run.namespace, run.name))
        by_kind = cached if cached is not None else await self._list(run)
        if _may_have_groups(run):
            by_kind |= await self._optional([kinds.LEADER_WORKER_SET], run)
        if self._defaults.gang_scheduler:
            by_kind |= await self._optional([kinds.POD_GROUP], run)
        if may_be_queued(run):
            by_kind[kinds.WORKLOAD.name] = await self._queues.workloads(run)
        if _sweeps(run):
            left = f"{labels.RUN}={run.name},{labels.ROLE}={labels.Role.SANDBOX}"
            by_kind["Pod"] += await self._cluster.list(kinds.POD, run.namespace, left)
            if _may_use_agent_sandbox(run):
                by_kind |= await self._optional(kinds.AGENT_SANDBOX, run)
        jobs = {uid_of(job) for job in by_kind["Job"] if _owned_by(job, {run.uid})}
        return Children(
            {
                kind: {
                    name_of(item): item
                    for item in items
                    if _is_ours(item, kind, run.uid, jobs) or is_kept(item, run.name)
                }
                for kind, items in by_kind.items()
            },
            leftovers=tuple(item for items in by_kind.values() for item in items if is_left(item, run.name, run.uid)),
            strays=tuple(pod for pod in by_kind["Pod"] if _is_stray(pod, run.uid, jobs)),
        )

    async def _list(self, run: Run) -> dict[str, list[Object]]:
        """Asks the API server for what bears the run's labels, and tells the cache."""
        selector = f"{labels.MANAGED_BY}={labels.MANAGED_BY_VALUE},{labels.RUN}={run.name}"
        key = (run.namespace, run.name)
        since = self._cache.want(key)
        lists = await asyncio.gather(*(self._cluster.list(kind, run.namespace, selector) for kind in kinds.CHILDREN))
        by_kind = {kind.name: items for kind, items in zip(kinds.CHILDREN, lists, strict=True)}
        self._cache.fill(key, by_kind, since)
        return by_kind

    async def _optional(self, wanted: Iterable[Kind], run: Run) -> dict[str, list[Object]]:
        """Lists what the run has of kinds of others; nothing where they aren't served, or are none of ours."""
        found: dict[str, list[Object]] = {}
        for kind in wanted:
            try:
                found[kind.name] = await self._cluster.list(kind, run.namespace, f"{labels.RUN}={run.name}")
            except (NotFoundError, RejectedError):
                break
        return found

    async def _preflight_output(self, seen: Observation) -> PreflightOutput | None:
        run = seen.run
        pod = seen.children.get("Pod", names.preflight(run.name, preflight_hash(new_context(seen, self._defaults))))
        if pod is None or not is_over(pod):
            return None
        unread = {one.container for one in terminated(pod) if one.exit_code == 0}
        gym = await self._verdict(pod, GYM_CONTAINER, GymPreflight, unread)
        trainer = await self._verdict(pod, TRAINER_CONTAINER, TrainerPreflight, unread)
        inference = await self._verdict(pod, PREFLIGHT_INFERENCE, InferencePreflight, unread)
        checks = (GYM_CONTAINER, TRAINER_CONTAINER, PREFLIGHT_INFERENCE)
        output = PreflightOutput(gym, trainer, inference, tuple(one for one in checks if one in unread))
        # A pod that was deleted meanwhile has no logs either, and that says nothing of the run.
        whole = None not in (output.gym, output.trainer, output.inference)
        return output if whole or await self._is_there(pod) else None

    async def _is_there(self, pod: Object) -> bool:
        try:
            found = await self._cluster.get(kinds.POD, pod["metadata"]["namespace"], name_of(pod))
        except NotFoundError:
            return False
        return uid_of(found) == uid_of(pod) and not is_deleting(found)

    async def _verdict[V: BaseModel](self, pod: Object, container: str, kind: type[V], unread: set[str]) -> V | None:
        """Reads what a container printed, and takes it from `unread`; None if it has no log, or one without a verdict.
        The log is not kept."""
        try:
            async with self._logs_at_once:
                log = await self._cluster.logs(
                    pod["metadata"]["namespace"], name_of(pod), container, lines=_VERDICT_LINES
                )
                unread.discard(container)
                return printed_verdict(log, kind)
        except (NotFoundError, UnreadLogError):
            return None
        except RejectedError as error:
            # 400: the container never started, so it has no log; or the kubelet doesn't know the pod yet.
            if error.final:
                return None
            raise

    async def _missing(self, seen: Observation) -> tuple[str, ...]:
        run = seen.run
        assert run.spec is not None
        found = [seen.namespace.error] if seen.namespace.error else []
        of_defaults = objects_of_defaults(new_context(seen, self._defaults).applied)
        for kind, name, field in (*named_objects(run.spec, run.name), *of_defaults):
            try:
                await self._cluster.get(kinds.BY_NAME[kind], run.namespace, name)
            except NotFoundError:
                found.append(f"{field}: {kind} {name} not found in namespace {run.namespace}")
        demanded = run.spec.sandboxes is not None and run.spec.sandboxes.backend == "AgentSandbox"
        if demanded and not await self._cluster.serves(kinds.AGENT_SANDBOX):
            found.append(f"spec.sandboxes.backend: {MISSING}: {INSTALL}")
        if _may_have_groups(run) and not await self._cluster.serves([kinds.LEADER_WORKER_SET]):
            found.append(f"spec.inference.nodes: {kinds.lack(kinds.LEADER_WORKER_SET)}")
        if self._defaults.gang_scheduler and not await self._cluster.serves([kinds.POD_GROUP]):
            found.append(f"gangScheduling.schedulerName: {kinds.lack(kinds.POD_GROUP)}")
        found += await self._queues.missing(run)
        return tuple(dict.fromkeys(found))

    async def _offers(self, run: Run, children: Children) -> tuple[tuple[ServerOffer, ...] | None, str]:
        """Asks all vLLM servers what they offer, once as many as wanted have started, until it is known what they lack;
        and which of them sends an endless answer."""
        assert run.spec is not None
        if run.status.weight_sync is not None and run.status.weight_sync.missing is not None:
            return None, ""
        pods = children.servers(labels.Role.INFERENCE)
        ips = [_ip_of(pod) for pod in pods if has_started(pod, INFERENCE_CONTAINER)]
        if len(ips) < admitted_spec(children, run.name, run.spec).inference.replicas or not all(ips):
            return None, ""
        try:
            # One after the other: a hundred answers at once are more than one process should hold.
            return tuple([await server_offer(self._session, ip) for ip in ips]), ""
        except OversizedAnswerError as error:
            return None, str(error)
        except ProbeError:
            return None, ""

    async def _log_tails(self, run: Run, children: Children, attempt: int) -> dict[tuple[str, str], str]:
        tails = {}
        for ref in wanted_tails(children, attempt):
            if ref not in self._tails:
                try:
                    async with self._logs_at_once:
                        text = tail(
                            await self._cluster.logs(
                                run.namespace, ref.pod, ref.container, lines=_TAIL_LINES, previous=ref.previous
                            )
                        )
                except KubeError:
                    continue  # a log is a help to the reader; the plan goes on without
                if len(self._tails) >= _KEPT_TAILS:
                    del self._tails[next(iter(self._tails))]
                self._tails[ref] = text
            tails[ref.pod, ref.container] = self._tails[ref]
        return tails


def read_run(found: Object, last: Run | None = None) -> Run:
    """Returns the run as the plan sees it. Of `last`, the same run read before, the spec is taken where it can't have
    changed: most looks at a run are for its progress."""
    meta = found["metadata"]
    spec, error = None, ""
    if last is not None and last.generation == int(meta.get("generation", 1)):
        spec, error = last.spec, last.spec_error
    else:
        try:
            spec = parse_spec(found.get("spec") or {})
        except InvalidRunError as invalid:
            error = str(invalid)
    run = Run(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        generation=int(meta.get("generation", 1)),
        spec=spec,
        status=parse_status(found.get("status")),
        spec_error=error,
        record=read_record(meta.get("annotations") or {}, meta["name"]),
        deleting=is_deleting(found),
        priority_class=priority_class_of(meta),
        preflight_only=(meta.get("annotations") or {}).get(labels.PREFLIGHT_ONLY) == "true",
    )
    queue = queue_of(meta)
    if queue is not None:
        return replace(run, queue=queue, names_queue=True)
    if keeps_defaults(run):
        kept = run.status.defaults
        return replace(run, queue=(kept.queue_name if kept else None) or "")
    return replace(run, queue=last.queue if last else "")  # `Observer.observe` asks the namespace


def _attempt_has_ended(seen: Observation) -> bool:
    attempt = current_attempt(seen, seen.run.status)
    job = seen.children.get("Job", names.trainer_job(seen.run.name, attempt))
    return job is not None and is_finished(job)


def _sweeps(run: Run) -> bool:
    """Whether sandboxes are looked for: there may be thousands, and while the run goes on they are the broker's."""
    over = has_ended(run.status) or waits(run) or (run.spec is not None and run.spec.suspend)
    return over and (run.spec is None or run.spec.sandboxes is not None)


def _may_use_agent_sandbox(run: Run) -> bool:
    """Whether the run has, or may have had, sandboxes of agent-sandbox."""
    return run.spec is None or (run.spec.sandboxes is not None and run.spec.sandboxes.backend != "Pod")


def _may_have_groups(run: Run) -> bool:
    """Whether the run has, or may have had, vLLM servers of several pods."""
    return run.spec is None or run.spec.inference.nodes > 1


def _is_ours(item: Object, kind: str, run_uid: str, jobs: set[str]) -> bool:
    """Whether the run made the object, itself or through a Job, ReplicaSet or StatefulSet of its own.

    Pods of ReplicaSets and StatefulSets are told by their labels: they are read only, never written.
    """
    if _owned_by(item, {run_uid}):
        return True
    if kind != "Pod":
        return False
    owner = _controller(item)
    return (
        owner.get("uid") in jobs if owner.get("kind") == "Job" else owner.get("kind") in {"ReplicaSet", "StatefulSet"}
    )


def _is_stray(pod: Object, run_uid: str, jobs: set[str]) -> bool:
    """Whether a pod is a trainer of the run's name, but of no Job of the run that is there."""
    return labels_of(pod).get(labels.ROLE) == labels.Role.TRAINER and not _is_ours(pod, "Pod", run_uid, jobs)


def _owned_by(item: Object, uids: set[str]) -> bool:
    return _controller(item).get("uid") in uids


def _controller(item: Object) -> dict[str, Any]:
    owners = item["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def _ip_of(pod: Object) -> str:
    return str((pod.get("status") or {}).get("podIP", ""))
