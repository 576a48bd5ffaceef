"""The HTTP half of the store.

| route | answer |
|---|---|
| GET /weights/held | `WeightsHeld`: the current version, and what each vLLM pod holds |
| GET /weights/NUMBER/manifest | the lines of the manifest as they come, to the end of the version |
| GET /weights/NUMBER/FILE | a staged file or a range of it, sent by the kernel (sendfile) |
"""

from aiohttp import web

from gymtrain_api.manifest import MANIFEST_FILE
from gymtrain_trainer.weights.store.weight_store import WeightStore


def weight_routes(store: WeightStore) -> list[web.AbstractRouteDef]:
    """Routes for the trainer's application."""

    async def held(_: web.Request) -> web.Response:
        return web.json_response(text=store.held().model_dump_json())

    async def manifest(request: web.Request) -> web.StreamResponse:
        found = store.manifest(request.match_info["number"])
        if found is None:
            raise web.HTTPNotFound(text=f"no such weights: {request.path}\n")
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        async for lines in found.follow():
            await response.write(lines)
        await response.write_eof()
        return response

    async def weights(request: web.Request) -> web.StreamResponse:
        path = store.find(request.match_info["number"], request.match_info["name"])
        if path is None:
            raise web.HTTPNotFound(text=f"no such weights: {request.path}\n")
        return web.FileResponse(path)

    return [
        web.get("/weights/held", held),
        web.get(f"/weights/{{number}}/{MANIFEST_FILE}", manifest),
        web.get("/weights/{number}/{name}", weights),
    ]
