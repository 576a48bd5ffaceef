"""What of an image for GPUs can be tried without one: `python check.py inference|trainer`, inside that image.

One line a check; exit status 1 where one fails. Not seen here: kernels that run, NCCL, the driver's own libraries.
"""

import ctypes
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

COMMON = ["torch", "torchvision", "triton", "transformers", "accelerate", "safetensors"]
IMPORTS = {
    "inference": [*COMMON, "vllm.entrypoints.openai.api_server", "gymtrain_vllm.serve", "gymtrain_vllm.plugin"],
    "trainer": [*COMMON, "peft", "trl.experimental.async_grpo", "torch.nn.attention.varlen", "gymtrain_trainer"],
}
# Opened on first use of a GPU. An image for CPUs lacks some of them.
OPENED_LATER = ["cudnn/lib/libcudnn*.so*", "cu13/lib/libcublas*.so*", "cu13/lib/libnvrtc*.so*", "nccl/lib/*.so*"]
HOPPER = 90  # compute capability 9.0


def imports(part: str) -> None:
    """All that the part loads when it starts."""
    for name in IMPORTS[part]:
        importlib.import_module(name)


def libraries() -> None:
    """The libraries that torch opens later are there, with all that they need but the driver."""
    import torch

    folder = Path(torch.__file__).parent.parent / "nvidia"
    for pattern in OPENED_LATER:
        found = sorted(folder.glob(pattern))
        if not found:
            raise FileNotFoundError(f"no {pattern} in {folder}")
        for library in found:
            ctypes.CDLL(str(library))


def triton_launcher() -> None:
    """Triton compiles the C file with which it launches kernels when the first one runs: a C compiler, Python.h.

    It is linked with the driver's library, for which an empty one of the same functions stands in.
    """
    from triton.backends import nvidia
    from triton.runtime.build import compile_module_from_src

    home = Path(nvidia.__file__).parent
    source = (home / "driver.c").read_text()
    with tempfile.TemporaryDirectory() as folder:
        stub = Path(folder) / "libcuda.so.1"
        names = sorted(set(re.findall(r"\bcu[A-Z]\w+(?=\()", source)))
        (Path(folder) / "stub.c").write_text("".join(f"int {name}(void) {{ return 999; }}\n" for name in names))
        command = [
            _compiler("gcc"),
            "-shared",
            "-fPIC",
            "-Wl,-soname,libcuda.so.1",
            "-o",
            str(stub),
            f"{folder}/stub.c",
        ]
        subprocess.run(command, check=True)
        ctypes.CDLL(str(stub), mode=ctypes.RTLD_GLOBAL)
        compile_module_from_src(
            src=source,
            name="cuda_utils",
            library_dirs=[str(home / "lib"), folder],
            include_dirs=[str(home / "include")],
            libraries=["libcuda.so.1"],
        )


def triton_kernel() -> None:
    """A kernel of a file is compiled for Hopper, by the assembler that Triton brings."""
    import triton
    from triton.backends.compiler import GPUTarget

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel_of_check.py").write_text(
            "import triton\n"
            "import triton.language as tl\n"
            "@triton.jit\n"
            "def double(values, size: tl.constexpr):\n"
            "    places = tl.arange(0, size)\n"
            "    tl.store(values + places, tl.load(values + places) * 2)\n"
        )
        sys.path.insert(0, folder)
        kernel = importlib.import_module("kernel_of_check").double
        source = triton.compiler.ASTSource(kernel, {"values": "*fp32", "size": "constexpr"}, {(1,): 64})
        compiled = triton.compile(source, target=GPUTarget("cuda", HOPPER, 32))
    if not compiled.asm["cubin"]:
        raise RuntimeError("no machine code came out")


def torch_compile() -> None:
    """Inductor compiles what stays on the CPU with a C++ compiler."""
    import torch

    got = torch.compile(lambda values: values.sin() + 1)(torch.ones(64))
    if not torch.allclose(got, torch.ones(64).sin() + 1):
        raise RuntimeError(f"compiled code computes {got}")


def serve_help() -> None:
    """vLLM's own command line, of which a build for CUDA is told the device: it finds none here."""
    done = subprocess.run(
        [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "--help=max-model-len"],
        env={**os.environ, "VLLM_TARGET_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode != 0 or "--max-model-len" not in done.stdout:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-2000:]}")


def flashinfer() -> None:
    """vLLM over several GPUs calls FlashInfer's all-reduce without asking whether anything can compile it."""
    from vllm import envs
    from vllm.utils.flashinfer import has_flashinfer

    if envs.VLLM_ALLREDUCE_USE_FLASHINFER and not has_flashinfer():
        raise RuntimeError("VLLM_ALLREDUCE_USE_FLASHINFER has to be 0: there is no nvcc")


def told() -> None:
    """Nothing to fail: what this image lacks, as README.md of images/ says."""
    from shutil import which

    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    print(f"     nvcc: {which('nvcc') or 'not on the PATH'}; CUDA_HOME: {home or 'not set'}; ninja: {which('ninja')}")


def _compiler(name: str) -> str:
    from shutil import which

    if (path := which(name)) is None:
        raise FileNotFoundError(f"no {name} on the PATH: Triton can't start a kernel")
    return path


def main(part: str) -> int:
    """All checks, each of which may fail without the rest."""
    checks: list[tuple[str, Callable[[], None]]] = [
        ("imports", lambda: imports(part)),
        ("CUDA libraries", libraries),
        ("Triton's launcher", triton_launcher),
        ("a Triton kernel for Hopper", triton_kernel),
        ("torch.compile", torch_compile),
        *([("vllm serve --help", serve_help), ("FlashInfer", flashinfer)] if part == "inference" else []),
        ("what is not there", told),
    ]
    failed = 0
    for name, check in checks:
        started = time.monotonic()
        try:
            check()
        except Exception:
            failed += 1
            traceback.print_exc(limit=4, file=sys.stdout)
            print(f"FAILED {name} ({time.monotonic() - started:.1f} s)", flush=True)
        else:
            print(f"ok   {name} ({time.monotonic() - started:.1f} s)", flush=True)
    print(f"{part}: {len(checks) - failed} of {len(checks)} checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in IMPORTS:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
