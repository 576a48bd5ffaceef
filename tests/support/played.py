"""What played pods say: the verdicts of preflight, what vLLM answers, and how a container ended."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from gymtrain_api import transports, wiring

type Object = dict[str, Any]

MAX_STEPS = 3


class serving:  # noqa: N801  # used as a function
    """Answers by path on one address, which `answer` makes of what is there for a path; of what that returns, if it can
    be called."""

    def __init__(
        self,
        answer: Callable[[Any], Awaitable[web.StreamResponse]],
        address: str,
        port: int,
        answers: Mapping[str, Any],
    ) -> None:
        app = web.Application()
        for path, value in answers.items():
            app.router.add_get(path, self._handler(answer, value))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self._where = (address, port)

    @staticmethod
    def _handler(answer: Callable[[Any], Awaitable[web.StreamResponse]], value: Any) -> Any:
        async def handle(_: web.Request) -> web.StreamResponse:
            return await answer(value() if callable(value) else value)

        return handle

    async def __aenter__(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, *self._where).start()

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def ended(code: int, message: str = "", reason: str = "") -> Object:
    """State of a container that has ended."""
    why = reason or ("Completed" if code == 0 else "Error")
    end = {"exitCode": int(code), "reason": why, "message": message, "startedAt": now(), "finishedAt": now()}
    return {"terminated": end}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


OPENAPI: Object = {"paths": {route: {} for route in transports.UPDATE_ROUTES}}
INFO = {"vllm_config": {"weight_transfer_config": {"backend": transports.PULL_BACKEND}}}
_MODEL = {"type": "responses_api_models", "name": wiring.POLICY_MODEL_SERVER}
GYM_VERDICT = wiring.GymPreflight(
    config={
        "reasoning_gym": {"resources_servers": {"reasoning_gym": {"entrypoint": "app.py"}}},
        "agent": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "model_server": _MODEL}}},
        wiring.POLICY_MODEL_SERVER: {"responses_api_models": {"vllm_model": {"entrypoint": "app.py"}}},
    },
    servers=[
        wiring.GymServerInfo(name="reasoning_gym", kind="resources", implementation="reasoning_gym"),
        wiring.GymServerInfo(
            name="agent",
            kind="agent",
            implementation="simple_agent",
            references=["reasoning_gym", wiring.POLICY_MODEL_SERVER],
        ),
        wiring.GymServerInfo(name=wiring.POLICY_MODEL_SERVER, kind="model", implementation="vllm_model"),
    ],
    data=wiring.DataIndex(train=[wiring.DataFile(file="0.jsonl", offsets_file="0.offsets", rows=10, weight=1)]),
)
VERDICTS: dict[str, wiring.Document] = {
    "gym": GYM_VERDICT,
    "trainer": wiring.TrainerPreflight(max_steps=MAX_STEPS),
    "inference": wiring.InferencePreflight(),
}
