"""The HTTP half of the store.

| route | answer |
|---|---|
| GET /weights/held | `WeightsHeld`: the current version, and what each vLLM pod holds |
| GET /weights/NUMBER/FILE | a staged file, sent by the kernel (sendfile) |
"""

from aiohttp import web

from gymtrain_trainer.weights.store import WeightStore


def weight_routes(store: WeightStore) -> list[web.AbstractRouteDef]:
    """Routes for the trainer's application."""

    async def held(_: web.Request) -> web.Response:
        return web.json_response(text=store.held().model_dump_json())

    async def weights(request: web.Request) -> web.StreamResponse:
        path = store.find(request.match_info["number"], request.match_info["name"])
        if path is None:
            raise web.HTTPNotFound(text=f"no such weights: {request.path}\n")
        return web.FileResponse(path)

    return [web.get("/weights/held", held), web.get("/weights/{number}/{name}", weights)]
