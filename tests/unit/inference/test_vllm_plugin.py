"""How vLLM finds the plugin, and what it remembers of model classes."""

import subprocess
import sys
from pathlib import Path

import gymtrain_vllm
from gymtrain_vllm.arguments import PLUGIN
from gymtrain_vllm.model_class_cache import provide

FOLDER = Path(gymtrain_vllm.__file__).parent.parent


def test_the_entry_point_is_found_where_the_folder_is_on_the_path() -> None:
    code = (
        "from importlib.metadata import entry_points\n"
        "print([(e.name, e.value) for e in entry_points(group='vllm.general_plugins')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(FOLDER)}, capture_output=True, text=True, check=True
    )
    assert str((PLUGIN, "gymtrain_vllm.plugin:register")) in done.stdout


def test_the_launcher_is_imported_without_heavy_modules() -> None:
    """vLLM's engine process imports it again."""
    code = "import gymtrain_vllm.serve, sys; print(sorted({'pydantic', 'torch', 'vllm'} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(FOLDER)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_notes_of_the_image_are_copied_over_none_of_the_pods_own(tmp_path: Path) -> None:
    for place, text in (("image", "image's"), ("pod", "pod's")):
        (tmp_path / place / "modelinfos").mkdir(parents=True)
        (tmp_path / place / "modelinfos" / "llama.json").write_text(text)
    (tmp_path / "image" / "modelinfos" / "qwen3.json").write_text("image's")
    provide(tmp_path / "pod", tmp_path / "image")
    assert (tmp_path / "pod" / "modelinfos" / "llama.json").read_text() == "pod's"
    assert (tmp_path / "pod" / "modelinfos" / "qwen3.json").read_text() == "image's"


def test_an_image_without_notes_is_no_error(tmp_path: Path) -> None:
    provide(tmp_path / "pod", tmp_path / "nothing")
