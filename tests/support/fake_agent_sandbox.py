"""The same cluster with agent-sandbox: its three kinds, and its controller, which makes a pod for each claim.

It behaves as agent-sandbox 1.0 does where the broker may notice: a claim without its pool or template waits for it, a
pod that is gone is made anew under its name, a claim that is deleted in the foreground stays until its pod is gone.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from aiohttp import web

from gymtrain_api import agent_sandbox
from tests.support.fake_pods import FakeCluster, Object, copied, now, refusal, reply


class FakeAgentSandbox(FakeCluster):
    """A FakeCluster whose broker writes claims. `writes` counts those alone."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, Object] = {}
        self.templates: dict[str, Object] = {}
        self.pools: dict[str, Object] = {}
        self.controls = True  # whether the controller is at work
        self.pod_refusal = ""  # what the API server says to it instead of making a pod
        self.pod_names: dict[str, str] = {}  # by claim, where it is not the claim's: taken from a pool
        self.pod_writes = 0  # by the broker, which has no right to them
        self._events: list[tuple[int, bytes]] = []

    def routes(self) -> list[web.RouteDef]:
        """Those of agent-sandbox's kinds."""
        base = f"{agent_sandbox.PATH}/namespaces/{{namespace}}"
        claims, one = f"{base}/{agent_sandbox.CLAIMS}", f"{base}/{agent_sandbox.CLAIMS}/{{name}}"
        return [
            web.get(claims, self._list_claims),
            web.post(claims, self._post_claim),
            web.get(one, self._get_claim),
            web.patch(one, self._patch_claim),
            web.delete(one, self._delete_claim),
            *self._keeping(f"{base}/{agent_sandbox.TEMPLATES}", self.templates),
            *self._keeping(f"{base}/{agent_sandbox.POOLS}", self.pools),
        ]

    def notes(self, name: str) -> dict[str, str]:
        """Of the claim."""
        return dict(self.claims[name]["metadata"]["annotations"])

    def annotate(self, name: str, notes: dict[str, str]) -> None:
        """The claim."""
        self.change(name, lambda claim: claim["metadata"]["annotations"].update(notes))

    def silently(self, name: str, notes: dict[str, str]) -> None:
        """The claim."""
        self.claims[name]["metadata"]["annotations"].update(notes)

    def vanish(self, name: str) -> None:
        """The pod; its claim stays."""
        self.pods.pop(name)

    def end_at(self, name: str, seconds: float) -> None:
        """By the claim's shutdownTime."""
        end = datetime.now(UTC) + timedelta(seconds=seconds)
        text = f"{end:%Y-%m-%dT%H:%M:%SZ}"
        self.change(name, lambda claim: claim["spec"]["lifecycle"].update(shutdownTime=text))

    def change(self, name: str, change: Callable[[Object], object]) -> None:
        """Changes a claim."""
        claim = copied(self.claims[name])
        change(claim)
        self._keep(claim, "MODIFIED")

    def remove(self, name: str) -> None:
        """A pod is gone. Its claim goes with it if it is on its way out, else there is a new pod."""
        super().remove(name)
        holder = next((one for one in self.claims if self._pod_name(one) == name), None)
        if holder is None:
            return
        if self.claims[holder]["metadata"].get("deletionTimestamp"):
            self._keep(self.claims.pop(holder), "DELETED")
        elif self.controls:
            self._see_to(holder)

    def control(self) -> None:
        """The controller looks at all claims that have no pod."""
        for name in list(self.claims):
            if self._pod_name(name) not in self.pods:
                self._see_to(name)

    # The controller

    def _pod_name(self, claim: str) -> str:
        return self.pod_names.get(claim, claim)

    def _see_to(self, name: str) -> None:
        claim = self.claims[name]
        pool = self.pools.get(claim["spec"]["warmPoolRef"]["name"])
        template = self.templates.get(pool["spec"]["sandboxTemplateRef"]["name"]) if pool else None
        if template is None:
            return self._say(name, "TemplateNotFound" if pool else "WarmPoolNotFound", "not found")
        if self.pod_refusal:
            return self._say(name, "ReconcilerError", f"Error seen: {self.pod_refusal}")
        blueprint = copied(template["spec"]["podTemplate"])
        pod = self._pod_name(name)
        self._made({"metadata": blueprint["metadata"] | {"name": pod}, "spec": blueprint["spec"]})
        return self._say(name, "DependenciesNotReady", "Pod exists with phase: Pending", pod)

    def _say(self, name: str, reason: str, message: str, pod: str = "") -> None:
        ready = {"type": "Ready", "status": "False", "reason": reason, "message": message}
        status: Object = {"conditions": [ready]} | ({"sandbox": {"name": pod}} if pod else {})
        self.change(name, lambda claim: claim.update(status=status))

    def run_pod(self, name: str) -> None:
        """The kubelet starts a pod, and the controller notes when that was for the first time."""
        super().run_pod(name)
        holder = next((one for one in self.claims if self._pod_name(one) == name), None)
        if holder is not None:
            first = {agent_sandbox.FIRST_READY: now()}
            self.change(
                holder, lambda claim: claim["metadata"].update(annotations=first | claim["metadata"]["annotations"])
            )

    # The API server

    def _keep(self, claim: Object, kind: str) -> None:
        self._version += 1
        claim["metadata"]["resourceVersion"] = str(self._version)
        if kind != "DELETED":
            self.claims[claim["metadata"]["name"]] = claim
        line = {"type": "ADDED" if kind == "NEW" else kind, "object": claim}
        self._events.append((self._version, json.dumps(line).encode() + b"\n"))
        self._notify()

    async def _list_claims(self, request: web.Request) -> web.StreamResponse:
        if self.down:
            return refusal(503, "down")
        if request.query.get("watch"):
            return await self._watch(request, self._events)
        return reply({"metadata": {"resourceVersion": str(self._version)}, "items": list(self.claims.values())})

    async def _get_claim(self, request: web.Request) -> web.Response:
        return self._read(self.claims.get(request.match_info["name"]))

    async def _post(self, request: web.Request) -> web.Response:
        return self._forbidden()

    async def _patch(self, request: web.Request) -> web.Response:
        return self._forbidden()

    async def _delete(self, request: web.Request) -> web.Response:
        return self._forbidden()

    def _forbidden(self) -> web.Response:
        self.pod_writes += 1
        return refusal(403, "pods is forbidden")

    async def _post_claim(self, request: web.Request) -> web.Response:
        return await (self.intercept or self.create)(request)

    async def create(self, request: web.Request) -> web.Response:
        """POST of a claim."""
        claim = await request.json()
        if (refused := self._refused("POST", claim)) is not None:
            return refused
        name = claim["metadata"]["name"]
        if name in self.claims:
            return refusal(409, "already exists")
        claim["metadata"] |= {"uid": f"claim-{self._version}", "creationTimestamp": now()}
        self._keep(claim, "NEW")
        made = copied(claim)
        if self.controls:
            self._spawn(self._later(name))
        return self._answered("POST", reply(made, 201))

    async def _later(self, name: str) -> None:
        if name in self.claims:
            self._see_to(name)

    async def _patch_claim(self, request: web.Request) -> web.Response:
        return await self._patch_one(request, self.claims, self._keep)

    async def _delete_claim(self, request: web.Request) -> web.Response:
        return await self._delete_one(request, self.claims, self._end_claim)

    def _end_claim(self, name: str, body: Object) -> None:
        assert body["propagationPolicy"] == "Foreground"
        self.change(name, lambda claim: claim["metadata"].update(deletionTimestamp=now()))
        pod = self._pod_name(name)
        if pod in self.pods:
            self._end(pod)
        else:
            self._keep(self.claims.pop(name), "DELETED")

    def _keeping(self, path: str, kept: dict[str, Object]) -> list[web.RouteDef]:
        """Routes of a kind that only has to be there."""

        async def list_all(_: web.Request) -> web.Response:
            return refusal(503, "down") if self.down else reply({"metadata": {}, "items": list(kept.values())})

        async def post(request: web.Request) -> web.Response:
            manifest = await request.json()
            name = manifest["metadata"]["name"]
            if self.down:
                return refusal(503, "down")
            if name in kept:
                return refusal(409, "already exists")
            kept[name] = manifest
            return reply(manifest, 201)

        async def delete(request: web.Request) -> web.Response:
            if self.down:
                return refusal(503, "down")
            if kept.pop(request.match_info["name"], None) is None:
                return refusal(404, "not found")
            return reply({"kind": "Status", "status": "Success"})

        return [web.get(path, list_all), web.post(path, post), web.delete(f"{path}/{{name}}", delete)]
