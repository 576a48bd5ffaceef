"""Mode Verify: the trainer generates through the Gym model server and has the answer judged, with no agent between.

    seed_session ──► resources server, where it has the route; its cookie names the session
    v1/responses ──► model server ──► gateway ──► vLLM: one answer, with token ids
    verify       ──► resources server, with the session's cookie: the reward

Environments of one turn only: tool calls in the answer are judged as they stand, nobody executes them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gymtrain_api.wiring import VerifyRoute
from gymtrain_trainer.data.rows import Task
from gymtrain_trainer.errors import RolloutError, RowRefusedError
from gymtrain_trainer.rollouts.answer import Answer, UnscoredError, judged, parse_response
from gymtrain_trainer.rollouts.failures import Call
from gymtrain_trainer.rollouts.http import Cookies, HttpSource, NoRouteError
from gymtrain_trainer.rollouts.source import RolloutLimits, Sampling, request_body


class VerifySource(HttpSource):
    """Generates, then asks for the reward."""

    def __init__(
        self,
        limits: RolloutLimits,
        sampling: Sampling,
        routes: Mapping[str, VerifyRoute],
        on_failure: Callable[[RolloutError], None] | None = None,
    ) -> None:
        """`routes`: by agent server, as rows name it."""
        super().__init__(limits, sampling, on_failure)
        self._routes = dict(routes)
        self._stateless: set[str] = set()  # resources servers without /seed_session

    async def _once(self, task: Task) -> Answer:
        route = self._routes[task.agent]
        body = request_body(task.row, self._sampling)
        session = await self._seed(route.resources_url, body)
        response, model_session = await self._post(
            Call.GENERATION, route.model_url, body["responses_create_params"], self._limits.timeout_seconds
        )
        generated = parse_response(response)
        try:
            verdict, _ = await self._post(
                Call.VERDICT,
                route.resources_url,
                body | {"response": response},
                self._limits.verify_timeout_seconds,
                session | model_session,  # as Gym's agents pass both on
            )
            # The verifier may hand back a response of its own making; the tokens are those that the model server gave.
            return judged(generated, verdict)
        except RowRefusedError:
            raise
        except RolloutError as error:
            raise UnscoredError(str(error), error.kind, generated) from error

    async def _seed(self, resources_url: str, body: dict[str, Any]) -> Cookies:
        """Cookies of a new session; none if the server keeps no sessions."""
        if resources_url in self._stateless:
            return {}
        try:
            _, cookies = await self._post(Call.SESSION, resources_url, body, self._limits.verify_timeout_seconds)
        except NoRouteError:
            self._stateless.add(resources_url)
            return {}
        return cookies
