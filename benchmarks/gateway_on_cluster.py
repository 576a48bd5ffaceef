"""What a run's gateway costs: tokens per second and latency through it and without it, on the run's own vLLM.

A run of the quickstart's model whose trainer never starts, so that nothing else has the CPU. The requests
(`gateway_overhead`) are sent from the gateway's pod, which alone may reach both.
"""

import json
import sys
from pathlib import Path

from benchmarks.namespaces import namespace
from benchmarks.report import Result
from tests.support.kubectl import Kubectl
from tests.support.runs import NOWHERE, example

_RUN = "overhead"
_DEADLINE = 600.0
_ROUNDS = ("--rounds=10", "--requests=16", "--concurrent=16", "--max-tokens=32", "--prompt-repeats=4")
_ALONE = ("--alone=60", "--alone-tokens=8")


def measure(kubectl: Kubectl) -> list[Result]:
    """The figures of one run.

    Raises:
        KubectlError: the run failed, or its gateway was not ready in time.
    """
    run = example("quickstart.yaml", _RUN)
    run["spec"]["weightSync"] = {"transport": "None"}
    run["spec"]["trainer"]["resources"] = NOWHERE
    del run["spec"]["model"]["storage"]
    with namespace(kubectl):
        kubectl.apply(run)
        kubectl.wait_condition(_RUN, "GatewayReady", _DEADLINE)
        vllm, gateway = (kubectl.pods(_RUN, role=role)[0] for role in ("inference", "gateway"))
        urls = [f"--gateway=http://{_ip(gateway)}:8000", f"--direct=http://{_ip(vllm)}:8000"]
        script = (Path(__file__).parent / "gateway_overhead.py").read_text()
        python = ["exec", "-i", gateway["metadata"]["name"], "-c", "gateway", "--", "python", "-"]
        told = json.loads(kubectl.run(*python, *urls, *_ROUNDS, *_ALONE, stdin=script, timeout=_DEADLINE))
    print(json.dumps(told), file=sys.stderr)
    name = "gateway"
    rates, alone, added = told["tokens_per_second"], told["alone_median_ms"], told["added_median_of_differences_ms"]
    return [
        Result(name, "tokens per second, vLLM alone", rates["direct"], "1/s"),
        Result(name, "tokens per second, through the gateway", rates["gateway"], "1/s"),
        Result(name, "tokens per second lost", 100 * (1 - told["share_of_direct"]), "%", aim=5),
        Result(name, "a request alone, vLLM alone, median", alone["direct"], "ms"),
        Result(name, "added by the gateway, median of differences", added, "ms", aim=3),
    ]


def _ip(pod: dict[str, dict[str, str]]) -> str:
    return pod["status"]["podIP"]
