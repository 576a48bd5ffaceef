"""A cluster that the user names with KUBECONFIG or CONTEXT: it is looked at, never changed."""

from __future__ import annotations

from pathlib import Path

from dev.report import DevError, say
from dev.shell import run


class Existing:
    """Somebody's cluster."""

    def __init__(self, kubeconfig: Path, context: str) -> None:
        self._kubeconfig = kubeconfig
        self._context = context

    def up(self) -> None:
        """See that it answers."""
        argv = ["kubectl", f"--kubeconfig={self._kubeconfig}", "--request-timeout=10s"]
        if self._context:
            argv.append(f"--context={self._context}")
        done = run([*argv, "get", "--raw=/readyz"], check=False, deadline=30)
        if done.returncode != 0 or done.stdout.strip() != "ok":
            raise DevError(
                f"the cluster of {self._kubeconfig} does not answer: {(done.stderr or done.stdout).strip()}",
                fix="mend KUBECONFIG or CONTEXT, or unset both to have a cluster made here",
            )
        say(f"using the cluster of {self._kubeconfig}")

    def down(self) -> None:
        """Nothing was made."""
        say(f"the cluster of {self._kubeconfig} is not ours: leaving it as it is")

    def kubeconfig(self) -> Path:
        """As named."""
        return self._kubeconfig

    def images(self, names: list[str]) -> None:
        """We can't know how its nodes get images."""
        raise DevError(
            f"cannot bring images to the cluster of {self._kubeconfig}",
            fix="build images/NAME/Dockerfile with the repository as context, push to a registry that the nodes reach, "
            "and set the chart's image values",
        )
