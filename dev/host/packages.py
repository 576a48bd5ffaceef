"""Debian packages that the cluster needs, installed once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dev.report import DevError, step
from dev.settings import Settings
from dev.shell import environment, run_logged

_PROGRAMS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "nft": "nftables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "socat": "socat",
    "openssl": "openssl",
    "ip": "iproute2",
    "mount": "mount",
}
CNI_PLUGINS = Path("/usr/lib/cni")
# runc filters system calls by a C library.
_TO_BUILD_RUNC = ("gcc", "libc6-dev", "libseccomp-dev", "pkg-config")
_SECCOMP_HEADER = Path("/usr/include/seccomp.h")


def ensure(settings: Settings, *, makes_base: bool = True, builds_runc: bool = False) -> None:
    """Install what is missing. Does nothing, and needs no network, when all programs are there.

    `makes_base` and `builds_runc`: whether what these make isn't in the cache.
    """
    if os.geteuid() != 0:
        raise DevError("the cluster needs root", fix="run as root, or set KUBECONFIG to a cluster that exists")
    search = environment(None)["PATH"]
    missing = {package for program, package in _PROGRAMS.items() if shutil.which(program, path=search) is None}
    if not makes_base:
        missing.discard("debootstrap")
    if settings.wants_containerd_2:
        missing -= {"containerd", "runc"}  # built from Go modules
    if not (CNI_PLUGINS / "bridge").exists():
        missing.add("containernetworking-plugins")
    if builds_runc and not _SECCOMP_HEADER.exists():
        missing.update(_TO_BUILD_RUNC)
    if not missing:
        return
    if shutil.which("apt-get", path=search) is None:
        raise DevError(f"missing: {', '.join(sorted(missing))}", fix="install them with your package manager")
    log = settings.cache / "logs" / "apt.log"
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    fix = "see the log; `apt-get update` must work on this machine"
    with step(f"installing {', '.join(sorted(missing))}"):
        run_logged(["apt-get", "update", "-qq"], log=log, deadline=180, what="apt-get update", env=env, fix=fix)
        install = ["apt-get", "install", "-y", "--no-install-recommends", *sorted(missing)]
        run_logged(install, log=log, deadline=600, what="apt-get install", env=env, fix=fix)
