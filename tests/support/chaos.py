"""Makes a real Gym server misbehave on demand: it answers 500, hangs, answers late, or answers garbage.

The server's own code stays as it is. A file on PYTHONPATH, from a ConfigMap, wraps its ASGI application, and a file in
the pod says what it does to the routes that count.
"""

from typing import Any, Literal

from tests.support.kubectl import Kubectl

type Mode = Literal["", "error", "hang", "slow", "garbage"]

_CONFIG_MAP = "chaos"
_MODE_FILE = "/gymtrain/scratch/chaos"
_ROUTES = ["/verify", "/run", "/v1/responses", "/seed_session"]

_SITECUSTOMIZE = f"""
import asyncio
import uvicorn

class Chaos:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        try:
            mode = open({_MODE_FILE!r}).read().strip()
        except OSError:
            mode = ""
        if scope["type"] != "http" or scope["path"] not in {_ROUTES!r} or not mode:
            return await self.app(scope, receive, send)
        if mode == "hang":
            await asyncio.sleep(3600)
        if mode == "slow":
            await asyncio.sleep(5)
            return await self.app(scope, receive, send)
        status, body = (500, b"chaos") if mode == "error" else (200, b'{{"garbage": [1, 2')
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({{"type": "http.response.start", "status": status, "headers": head}})
        await send({{"type": "http.response.body", "body": body}})

made = uvicorn.Config.__init__

def config(self, app, *args, **kwargs):
    made(self, Chaos(app), *args, **kwargs)

uvicorn.Config.__init__ = config
"""


def add_chaos(run: dict[str, Any], *servers: str) -> dict[str, Any]:
    """Makes `servers` of the run ready to misbehave; returns the ConfigMap to apply before the run."""
    template = {
        "spec": {
            "containers": [
                {
                    "name": "gym",
                    "env": [{"name": "PYTHONPATH", "value": "/chaos:/opt/gymtrain"}],
                    "volumeMounts": [{"name": "chaos", "mountPath": "/chaos", "readOnly": True}],
                }
            ],
            "volumes": [{"name": "chaos", "configMap": {"name": _CONFIG_MAP}}],
        }
    }
    blocks = run["spec"]["gym"].setdefault("servers", {})
    for server in servers:
        blocks.setdefault(server, {})["template"] = template
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _CONFIG_MAP},
        "data": {"sitecustomize.py": _SITECUSTOMIZE},
    }


def set_chaos(kubectl: Kubectl, run: str, server: str, mode: Mode) -> None:
    """From now on every pod of the server does that; `""` ends it."""
    write = f"open({_MODE_FILE!r}, 'w').write({mode!r})"
    for pod in kubectl.pods(run, role="gym", server=server):
        name = pod["metadata"]["name"]
        kubectl.run("exec", name, "-c", "gym", "--", "python", "-S", "-c", write)
