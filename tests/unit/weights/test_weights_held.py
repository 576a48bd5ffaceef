"""GET /weights/held: what the gateway goes by."""

from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gymtrain_api.wiring import WeightsHeld
from gymtrain_trainer.weights import WeightStore, weight_routes


async def ask(store: WeightStore) -> WeightsHeld:
    app = web.Application()
    app.add_routes(weight_routes(store))
    async with TestClient(TestServer(app)) as client:
        return WeightsHeld.model_validate_json(await (await client.get("/weights/held")).read())


async def test_before_there_is_a_transport_nothing_is_held(tmp_path: Path) -> None:
    assert await ask(WeightStore(tmp_path / "staged")) == WeightsHeld()


async def test_the_transport_answers(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "staged")
    answer = WeightsHeld(version="demo:1:3", pods={"http://10.0.0.1:8000": "demo:1:2"})
    store.held = lambda: answer
    assert await ask(store) == answer
