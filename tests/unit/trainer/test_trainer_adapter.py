"""Adapters through TRL's own trainer: what it saves reaches the pods under our labels."""

import asyncio
import json
import queue
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("peft")

from gymtrain_trainer.errors import SettingsError, TrainerError  # noqa: E402
from gymtrain_trainer.trl.adapter import agree_on_adapter  # noqa: E402
from gymtrain_trainer.trl.internals import sent_parameters  # noqa: E402
from gymtrain_trainer.trl.settings import StepSettings, trl_arguments  # noqa: E402
from gymtrain_trainer.trl.trainer import build_trainer  # noqa: E402
from gymtrain_trainer.weights import LoRAFilesystem, SyncSettings, TransportRefusedError, WeightSync  # noqa: E402
from tests.support.fake_vllm import FakeVLLM, free_port, serving  # noqa: E402
from tests.unit.trainer.test_trainer_settings import spec  # noqa: E402

pytestmark = pytest.mark.torch


class NoRollouts:
    """A worker that never starts."""

    rollout_buffer: queue.Queue[Any] = queue.Queue()
    metrics_queue: queue.Queue[Any] = queue.Queue()
    version = 0

    def update_model_version(self, model_version: int) -> None:
        self.version = model_version


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("model")
    words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(64)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t1", pad_token="t2").save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        eos_token_id=1,
        pad_token_id=2,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def make(tiny_model: Path, folder: Path, transfer: Any, **lora: Any) -> Any:
    config = {"max_steps": 4, "num_generations": 4, "per_device_train_batch_size": 4, "report_to": "none"}
    return build_trainer(
        trl_arguments(spec(config), folder=folder, steps=4),
        tiny_model,
        callbacks=[],
        lora={"task_type": "CAUSAL_LM", "r": 4, "target_modules": ["q_proj", "v_proj"], **lora},
        rollout_worker=NoRollouts(),
        weight_transfer=transfer,
        steps=StepSettings.of(spec(config)),
    )


def settings(port: int) -> SyncSettings:
    return SyncSettings("demo", 1, "127.0.0.1", "http://x", timeout_seconds=20, pods_port=port)


async def test_an_adapter_that_trl_saved_is_loaded_under_the_versions_label(tiny_model: Path, tmp_path: Path) -> None:
    port = free_port()
    pod = FakeVLLM(tmp_path / "pod")
    sync = WeightSync.over(settings(port), LoRAFilesystem(tmp_path / "adapters", max_staleness=1))

    def train() -> Any:
        trainer = make(tiny_model, tmp_path / "run", sync)
        agree_on_adapter(trainer, sync.settle)
        sync.init_weight_transfer()
        trainer._sync_weight()
        trainer._sync_weight()
        return trainer

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(pod.app(), "127.0.0.1", port))
        trainer = await asyncio.wait_for(asyncio.to_thread(train), 120)
        assert list(pod.adapters) == ["demo:1:1", "demo:1:2"]
        assert (sync.current_version, trainer.model_version) == ("demo:1:2", 2)
        saved = Path(pod.adapters["demo:1:2"])
        assert saved.parent == tmp_path / "adapters"
        assert json.loads((saved / "adapter_config.json").read_text())["r"] == 4
        assert not pod.paused
        await asyncio.to_thread(sync.destroy)


def test_merged_weights_are_sent_under_the_names_that_were_announced(tiny_model: Path, tmp_path: Path) -> None:
    trainer = make(tiny_model, tmp_path, SimpleNamespace(sent_dtype=None))
    announced = [(name, tuple(tensor.shape)) for name, tensor in sent_parameters(trainer)]
    assert announced == [(name, tuple(tensor.shape)) for name, tensor in trainer._streaming_iter()]
    assert not any("lora" in name or "base_layer" in name for name, _ in announced)


def test_an_adapter_that_vllm_cannot_serve_is_refused_with_a_way_out(tiny_model: Path, tmp_path: Path) -> None:
    sync = WeightSync.over(settings(1), LoRAFilesystem(tmp_path, max_staleness=1))
    trainer = make(tiny_model, tmp_path / "run", sync, use_dora=True)
    with pytest.raises(SettingsError, match=r"spec\.model\.lora: DoRA .* NCCL or HTTPFull"):
        agree_on_adapter(trainer, sync.settle)


def test_a_refused_transport_ends_the_run_with_its_own_error(tiny_model: Path, tmp_path: Path) -> None:
    def settle() -> Any:
        raise TransportRefusedError("Auto: no transport works")

    trainer = make(tiny_model, tmp_path, object())
    with pytest.raises(TransportRefusedError):
        agree_on_adapter(trainer, settle)
    with pytest.raises(TrainerError, match="rank 0"):
        agree_on_adapter(trainer, None)
