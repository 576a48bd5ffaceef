"""A cluster that the user names with KUBECONFIG or CONTEXT: it is looked at, never changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dev import files
from dev.report import DevError, say
from dev.settings import Settings
from dev.shell import run


class Existing:
    """Somebody's cluster.

    kubectl itself finds it, so that KUBECONFIG may name several files, and CONTEXT alone means ~/.kube/config.
    """

    def __init__(self, settings: Settings, kubeconfig: str, context: str) -> None:
        """`kubeconfig` and `context` as the environment has them, empty where it hasn't."""
        self._settings = settings
        self._named = kubeconfig
        self._kubectl = ["kubectl", *([f"--context={context}"] if context else [])]
        self._context = context
        self._name = " of ".join(filter(None, [context and f"context {context}", kubeconfig or "~/.kube/config"]))

    def up(self) -> None:
        """See that it answers."""
        done = run([*self._kubectl, "--request-timeout=10s", "get", "--raw=/readyz"], check=False, deadline=30)
        if done.returncode != 0 or done.stdout.strip() != "ok":
            raise DevError(
                f"the cluster of {self._name} does not answer: {(done.stderr or done.stdout).strip()}",
                fix="mend KUBECONFIG or CONTEXT, or unset both to have a cluster made here",
            )
        say(f"using the cluster of {self._name}")

    def down(self) -> None:
        """Nothing was made."""
        self._own().unlink(missing_ok=True)
        say(f"the cluster of {self._name} is not ours: leaving it as it is")

    def kubeconfig(self) -> Path:
        """The file that was named, or one with the named context alone: its readers reach no other cluster."""
        if Path(self._named).is_file() and not self._context:
            return Path(self._named)
        text = run([*self._kubectl, "config", "view", "--minify", "--flatten", "--raw"]).stdout
        files.write(self._own(), text, mode=0o600)
        return self._own()

    def images(self, names: Sequence[str]) -> None:
        """We can't know how its nodes get images."""
        raise DevError(
            f"cannot bring images to the cluster of {self._name}",
            fix="build them and push them to a registry that the nodes reach (images/README.md), then set "
            "IMAGE_REGISTRY to what stands before gymtrain/NAME, such as registry.example.com/, and "
            "GYMTRAIN_IMAGE_TAG to their tag",
        )

    def _own(self) -> Path:
        return self._settings.cache / "given.kubeconfig"
