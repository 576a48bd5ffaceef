"""What the image for CPUs leaves out of torch's build for GPUs, and libraries in the place of what torch doesn't load
without.

    python gpu_stand_ins.py --export-options    prints what keeps `uv export` from naming those packages
    python gpu_stand_ins.py SITE_PACKAGES       makes the libraries

torch links these libraries, so it doesn't load without them, and calls none of them without a GPU: 1.8 GB that the
image for CPUs need not carry. A stand-in has the functions that torch's own libraries take from the real one, under the
versions that they ask for; calling one ends the process. `objdump`, `as` and `ld` (binutils) have to be on the PATH.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

# By package, the libraries of it that torch doesn't load without. Not among the packages: those whose libraries torch
# calls when it is loaded (the CUDA runtime, CUPTI), and small ones.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "nvidia-cublas": ("cu13/lib/libcublas.so.13", "cu13/lib/libcublasLt.so.13"),
    "nvidia-cuda-nvrtc": ("cu13/lib/libnvrtc.so.13",),
    "nvidia-cudnn-cu13": ("cudnn/lib/libcudnn.so.9",),
    "nvidia-cufft": ("cu13/lib/libcufft.so.12",),
    "nvidia-curand": ("cu13/lib/libcurand.so.10",),
    "nvidia-cusolver": (),
    "nvidia-cusparse": ("cu13/lib/libcusparse.so.12",),
    "nvidia-cusparselt-cu13": ("cusparselt/lib/libcusparseLt.so.0",),
    "nvidia-nccl-cu13": ("nccl/lib/libnccl.so.2",),
    "nvidia-nvjitlink": (),
    "triton": (),
}
# In a line of `objdump -T`: *UND* 0000 (libcublas.so.13) cublasCreate_v2;
# of a library without versions: *UND* 0000 Base ncclRecv.
_TAKEN = re.compile(r"\*UND\*\s+[0-9a-f]+\s+(?:\((?P<version>\S+)\)|Base)\s+(?P<name>\S+)")


def taken(libraries: list[Path]) -> set[tuple[str, str]]:
    """What the libraries take from others: (version, name), the version empty where the other has none."""
    listed = subprocess.run(["objdump", "-T", *libraries], capture_output=True, text=True, check=True, timeout=300)
    return {(found["version"] or "", found["name"]) for found in _TAKEN.finditer(listed.stdout)}


def make(library: Path, wanted: set[tuple[str, str]]) -> int:
    """Writes one; returns how many functions it has."""
    prefix = library.name.removeprefix("lib").partition(".")[0]
    # NVIDIA names a library's one version after its file.
    versioned = {name for version, name in wanted if version == library.name}
    names = versioned or {name for version, name in wanted if not version and name.startswith(prefix)}
    with tempfile.TemporaryDirectory() as folder:
        source, code, versions = (Path(folder, name) for name in ("stand_in.s", "stand_in.o", "stand_in.map"))
        functions = [f".globl {name}\n.type {name},@function\n{name}:\n" for name in sorted(names)]
        # ud2 is the instruction that ends a process; the last section says that the stack need not be executable.
        source.write_text("".join(functions) + "ud2\n.section .note.GNU-stack\n")
        versions.write_text((library.name if versioned else "") + " { global: *; };\n")
        library.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["as", source, "-o", code], check=True, timeout=60)
        command = ["ld", "-shared", "-soname", library.name, "--version-script", versions, "-o", library, code]
        subprocess.run(command, check=True, timeout=60)
    return len(names)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--export-options":
        print(*(f"--no-emit-package={package}" for package in LEFT_OUT))
        sys.exit()
    site_packages = Path(sys.argv[1])
    functions = taken(sorted((site_packages / "torch" / "lib").glob("*.so")))
    for name in sorted(library for libraries in LEFT_OUT.values() for library in libraries):
        print(f"{name}: {make(site_packages / 'nvidia' / name, functions)} functions")
