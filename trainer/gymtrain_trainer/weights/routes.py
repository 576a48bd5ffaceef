"""The HTTP half of the store: GET /weights/NUMBER/FILE, sent by the kernel (sendfile)."""

from aiohttp import web

from gymtrain_trainer.weights.store import WeightStore


def weight_routes(store: WeightStore) -> list[web.AbstractRouteDef]:
    """Routes for the trainer's application."""

    async def weights(request: web.Request) -> web.StreamResponse:
        path = store.find(request.match_info["number"], request.match_info["name"])
        if path is None:
            raise web.HTTPNotFound(text=f"no such weights: {request.path}\n")
        return web.FileResponse(path)

    return [web.get("/weights/{number}/{name}", weights)]
