"""Answers for the daemons of all pods on fake nodes, whose addresses are this machine's: `python -m ...stand_in`."""

from aiohttp import web

from gymtrain_api import wiring


async def _status(_: web.Request) -> web.Response:
    return web.json_response({"version": "stand-in", "idleSeconds": 0, "execs": 0})


def main() -> None:
    """Until it is ended."""
    app = web.Application()
    app.add_routes([web.get("/healthz", _status), web.get("/v1/status", _status)])
    web.run_app(
        app,
        host="0.0.0.0",  # noqa: S104  any address of 127.1.0.0/16
        port=wiring.SANDBOX_PORT,
        access_log=None,
        print=lambda *_: None,
        backlog=4096,
    )


if __name__ == "__main__":
    main()
