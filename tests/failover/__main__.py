"""Breaks the leader of two operators again and again: `python -m tests.failover --rounds 200 [--seed 7]`.

Needs no cluster: kube-apiserver, etcd and the controllers are real (`dev/run binaries`), the node is that of the tests.
Fails where another took longer than is promised, or where one wrote who no longer led, as the audit log has it.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

from tests.support.apiserver import ApiServer, binary
from tests.support.audit import POLICY
from tests.support.failover import Break, Failover, Round
from tests.support.fakenode import FakeNode
from tests.support.install import CRD, DEFAULTS_CRD, OPERATOR_NAMESPACE, install_crd
from tests.support.kubectl import Kubectl

_PROMISED_SECONDS = 10.0


def run(rounds: int, seed: int, folder: Path) -> list[Round]:
    """That many rounds, of each kind as many, in an order that `seed` decides. Prints each."""
    kinds = [list(Break)[number % len(Break)] for number in range(rounds)]
    random.Random(seed).shuffle(kinds)
    found: list[Round] = []
    with ApiServer(folder, audit_policy=POLICY) as server:
        for crd in (CRD, DEFAULTS_CRD):
            install_crd(server, crd)
        admin = Kubectl(str(server.kubeconfig), OPERATOR_NAMESPACE, binary("kubectl"))
        admin.run("create", "namespace", admin.namespace)
        server.start_controllers()
        with FakeNode(server, long_steps=10_000_000), Failover(server, folder, seed) as failover:
            for number, how in enumerate(kinds, start=1):
                one = failover.round(how)
                found.append(one)
                print(
                    f"{number}/{rounds} {how}: the other acts after {one.seconds:.1f} s; exit code {one.exit_code}; "
                    f"load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
                for write, lease in one.of_two:
                    print(f"  written by who no longer led: {write}, after {lease}", flush=True)
            print(_summary(found, failover.writes()))
    return found


def _summary(found: list[Round], writes: int) -> str:
    seconds = [one.seconds for one in found]
    parts = []
    for how in Break:
        some = [one.seconds for one in found if one.how == how]
        if some:
            parts.append(f"{how} {len(some)} (worst {max(some):.1f} s)")
    return (
        f"{len(found)} rounds: {', '.join(parts)}; the other acts after {max(seconds):.1f} s at worst, "
        f"{statistics.median(seconds):.1f} s at the median; {writes} writes, by two {len(found[-1].of_two)}"
    )


def main() -> int:
    """1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.failover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="of the order and the moments (default: a new one)")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("argument --rounds: at least 1")
    seed = random.randrange(1 << 16) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory(prefix="failover-") as folder:
        os.environ["KUBECACHEDIR"] = f"{folder}/kubectl-cache"  # one of an earlier server on the same port would lie
        print(f"{options.rounds} rounds, seed {seed}", flush=True)
        found = run(options.rounds, seed, Path(folder))
    late = [one for one in found if one.seconds > _PROMISED_SECONDS]
    for one in late:
        print(f"too late: {one.seconds:.1f} s after {one.how}; promised are {_PROMISED_SECONDS:.0f} s", file=sys.stderr)
    return 1 if late or found[-1].of_two else 0


if __name__ == "__main__":
    sys.exit(main())
