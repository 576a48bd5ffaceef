"""What a scrape of the operator costs by the number of runs: CPU, size, and what is kept between two scrapes.

PYTHONPATH=api:kube:operator:. python -m benchmarks.run_metrics
"""

import time
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from gymtrain_operator.run_metrics import RunMetrics
from tests.support.world import World

_NAMESPACES = 20
_SCRAPES = 5
_RUNS = ((0, 0), (1000, 0), (1000, 10_000), (0, 10_000))  # that train, that have ended


def main() -> None:
    """Prints a line for each number of runs."""
    world = World(sandboxes={}).to_training()
    run, training = world.observe().run, world.status
    world.trainer_ends(0)
    world.settle(5.0)
    print("training   ended   CPU of a scrape      size   series      kept")
    for live, ended in _RUNS:
        metrics, registry = RunMetrics(), CollectorRegistry()
        registry.register(metrics)
        before = _resident_mb()
        for number in range(live + ended):
            one = replace(run, name=f"run-{number:05}", namespace=f"team-{number % _NAMESPACES}")
            # A copy: the operator reads each status anew.
            metrics.show(one, (training if number < live else world.status).model_copy(deep=True))
        kept = _resident_mb() - before
        seconds, text = min(_scrape(registry) for _ in range(_SCRAPES))
        series = sum(not line.startswith(b"#") for line in text.splitlines())
        print(f"{live:8} {ended:7} {seconds * 1000:13.0f} ms {len(text) / 1e6:6.1f} MB {series:8} {kept:6.1f} MB")


def _scrape(registry: CollectorRegistry) -> tuple[float, bytes]:
    begin = time.process_time()
    text = generate_latest(registry)
    return time.process_time() - begin, text


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


if __name__ == "__main__":
    main()
