"""What a trainer's pod finds: run.json, the model, the datasets, and the folders that it writes to."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymtrain_api import wiring
from gymtrain_api.spec import GymTrainingRunSpec

AGENTS = ("first_agent", "second_agent")
RUN_TOKEN = "conformance-token"  # noqa: S105 - guards stand-ins on this machine, for a trial
ROW_FIELD = "conformance_row"  # of each row: its number
_ROWS = 12


@dataclass(frozen=True)
class Ports:
    """Of the stand-ins, and of the trainer."""

    vllm: int
    agents: tuple[int, ...]
    trainer: int


@dataclass(frozen=True)
class Place:
    """The folders of one trial."""

    folder: Path

    @property
    def root(self) -> Path:
        """In place of /gymtrain."""
        return self.folder / "gymtrain"

    @property
    def run_config(self) -> Path:
        """In place of /etc/gymtrain/run/run.json."""
        return self.folder / "run" / "run.json"

    @property
    def run_token(self) -> Path:
        """In place of /etc/gymtrain/token/token."""
        return self.folder / "token" / "token"

    @property
    def termination_log(self) -> Path:
        """In place of /dev/termination-log."""
        return self.folder / "termination-log"

    @property
    def checkpoints(self) -> Path:
        """In place of /gymtrain/checkpoints."""
        return self.root / "checkpoints"

    def environment(self, attempt: int, ports: Ports, run_config: Path | None = None) -> dict[str, str]:
        """The variables of node 0 of an attempt."""
        return {
            wiring.ENV_ATTEMPT: str(attempt),
            wiring.ENV_NODES: "1",
            wiring.ENV_NODE_RANK: "0",
            wiring.ENV_MASTER_HOST: "127.0.0.1",
            wiring.ENV_RUN_CONFIG: str(run_config or self.run_config),
            wiring.ENV_ROOT: str(self.root),
            wiring.ENV_TERMINATION_LOG: str(self.termination_log),
            wiring.ENV_TRAINER_PORT: str(ports.trainer),
            wiring.ENV_RUN_TOKEN_FILE: str(self.run_token),
        }

    def inputs(self) -> dict[str, tuple[int, int]]:
        """Size and time of change of every file that a trainer only reads."""
        kept = {self.checkpoints, self.root / "scratch"}
        files = [path for path in self.folder.rglob("*") if path.is_file() and path != self.termination_log]
        seen = [path for path in files if not kept & set(path.parents)]
        return {str(path.relative_to(self.folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in seen}


def make_place(folder: Path, spec: GymTrainingRunSpec, ports: Ports, gateway_host: str, model: Path | None) -> Place:
    """Fills the folder.

    Args:
        folder: that is empty.
        spec: of the run.
        ports: of the stand-ins.
        gateway_host: address of the gateway's stand-in, which listens on the gateway's own port.
        model: a Hugging Face folder; a few bytes in the shape of one where it is left out.
    """
    place = Place(folder)
    for name in ("checkpoints", "scratch/home", "data"):
        (place.root / name).mkdir(parents=True)
    _make_model(place.root / "model", model)
    index = _make_data(place.root / "data")
    (place.root / "data" / "index.json").write_text(index.model_dump_json())
    agents = dict(zip(AGENTS, (f"http://127.0.0.1:{port}" for port in ports.agents), strict=True))
    run = wiring.RunConfig(
        name="conformance",
        namespace="conformance",
        uid="00000000-0000-0000-0000-000000000000",
        lineage="00000000-0000-0000-0000-000000000000",
        spec=spec,
        inference_url=f"http://127.0.0.1:{ports.vllm}",
        inference_pods_host="127.0.0.1",
        gateway_url=f"http://{gateway_host}:{wiring.GATEWAY_PORT}",
        gateway_pods_host=gateway_host,
        trainer_host="127.0.0.1",
        agents=agents,
    )
    place.run_token.parent.mkdir()
    place.run_token.write_text(RUN_TOKEN)
    place.run_config.parent.mkdir()
    place.run_config.write_text(json.dumps(run.model_dump(mode="json", by_alias=True), indent=1))
    return place


def row(number: int) -> dict[str, Any]:
    """Row `number` of the dataset."""
    parameters = {"input": [{"role": "user", "content": f"What is {number} + {number}?"}]}
    made: dict[str, Any] = {"responses_create_params": parameters, ROW_FIELD: number, "answer": str(2 * number)}
    return made | {"agent_ref": {"type": "responses_api_agents", "name": AGENTS[1]}} if number % 3 == 2 else made


def agent_of(made: Mapping[str, Any]) -> str:
    """The agent that a row goes to."""
    return str((made.get("agent_ref") or {}).get("name") or AGENTS[0])


def _make_data(folder: Path) -> wiring.DataIndex:
    lines = [json.dumps(row(number)).encode() + b"\n" for number in range(_ROWS)]
    offsets = [sum(map(len, lines[:number])) for number in range(_ROWS + 1)]
    (folder / "train.jsonl").write_bytes(b"".join(lines))
    (folder / "train.offsets").write_bytes(struct.pack(f"<{len(offsets)}Q", *offsets))
    agents = [agent_of(row(number)) for number in range(_ROWS)]
    file = wiring.DataFile(
        file="train.jsonl",
        offsets_file="train.offsets",
        rows=_ROWS,
        weight=1,
        default_agent=AGENTS[0],
        agents={agent: agents.count(agent) for agent in AGENTS},
    )
    return wiring.DataIndex(train=[file])


def _make_model(folder: Path, model: Path | None) -> None:
    if model is not None:
        folder.symlink_to(model.resolve(), target_is_directory=True)
        return
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("")
    header = json.dumps({"weight": {"dtype": "F32", "shape": [256], "data_offsets": [0, 1024]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(1024))
