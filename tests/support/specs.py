"""The smallest valid run, for tests of single fields."""

from typing import Any


def smallest_run(name: str = "small", **spec: Any) -> dict[str, Any]:
    """A run with required fields only; `spec` replaces whole blocks by wire name."""
    return {
        "apiVersion": "gymtrain.dev/v1alpha1",
        "kind": "GymTrainingRun",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": "hf://Qwen/Qwen3-0.6B"},
            "gym": {"configPaths": ["resources_servers/reasoning_gym/configs/reasoning_gym.yaml"]},
            "data": {"train": [{"source": "pvc://datasets/train.jsonl"}]},
            **spec,
        },
    }


def played_run(name: str, **spec: Any) -> dict[str, Any]:
    """The smallest run whose pods the fake node can play: its data needs no volume."""
    return smallest_run(name, data={"train": [{"source": "gym://data/example.jsonl"}]}, **spec)


def of_a_later_release(value: Any) -> Any:
    """The same JSON with a field that this release doesn't know in every object of it."""
    if isinstance(value, dict):
        return {key: of_a_later_release(item) for key, item in value.items()} | {"fieldOfTomorrow": "x"}
    return [of_a_later_release(item) for item in value] if isinstance(value, list) else value
