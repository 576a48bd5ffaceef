"""An environment with a tool and a state: the model finds a hidden number by guessing, in few calls.

A row has the number; the model doesn't see it. Each rollout is a session of its own.
"""

from fastapi import FastAPI, Request
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY
from pydantic import BaseModel, Field


class HiddenNumberConfig(BaseResourcesServerConfig):
    """What the Gym config may set for this server."""

    free_guesses: int = 5  # more of them cost reward


class SeedRequest(BaseSeedSessionRequest):
    """The fields of a row that a session begins with."""

    number: int


class GuessRequest(BaseModel):
    """The tool's arguments."""

    number: int


class GuessResponse(BaseModel):
    """What the model is told."""

    answer: str  # higher, lower or right


class Session(BaseModel):
    """One rollout."""

    number: int
    guesses: int = 0
    found: bool = False


class HiddenNumber(SimpleResourcesServer):
    """The resources server: its tools, and what a rollout is worth."""

    config: HiddenNumberConfig
    sessions: dict[str, Session] = Field(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/guess")(self.guess)
        return app

    async def seed_session(self, request: Request, body: SeedRequest) -> BaseSeedSessionResponse:
        self.sessions[request.session[SESSION_ID_KEY]] = Session(number=body.number)
        return BaseSeedSessionResponse()

    async def guess(self, request: Request, body: GuessRequest) -> GuessResponse:
        session = self.sessions[request.session[SESSION_ID_KEY]]
        session.guesses += 1
        if body.number == session.number:
            session.found = True
            return GuessResponse(answer="right")
        return GuessResponse(answer="higher" if body.number < session.number else "lower")

    async def verify(self, request: Request, body: BaseVerifyRequest) -> BaseVerifyResponse:
        # The session is over: what stays in memory would grow with every rollout.
        session = self.sessions.pop(request.session[SESSION_ID_KEY])
        return BaseVerifyResponse(**body.model_dump(), reward=reward_of(session, self.config.free_guesses))


def reward_of(session: Session, free_guesses: int) -> float:
    """1 for a number that was found in time, a tenth less for each guess after that, 0 if it wasn't found."""
    return round(max(0.0, 1.0 - 0.1 * max(0, session.guesses - free_guesses)), 6) if session.found else 0.0


if __name__ == "__main__":
    HiddenNumber.run_webserver()
