"""The smallest trainer: it follows the contract, and learns nothing.

Each step sends the model's weights, unchanged, as another version, runs rollouts, and reports their mean reward. What
a real trainer does in between is left out; the rest it has to do too. Settings, in spec.trainer.config:

| name | meaning | default |
|---|---|---|
| steps | of the run | 4 |
| rows_per_step | rows of a step | 2 |
| rollouts_per_row | rollouts of each | 4 |
| max_output_tokens | that the model may write in a call | no limit |
| temperature | of the sampling; the gateway reads it too | 1 |
"""

import itertools
import json
import os
import sys

from contract import Pod, RefusedError, Rollouts, Weights, end_with, open_port, tasks


def settings(pod: Pod) -> tuple[int, int, int]:
    """Steps, rows a step, rollouts a row. Raises RefusedError: every attempt would find the same."""
    found = []
    for name, default in (("steps", 4), ("rows_per_step", 2), ("rollouts_per_row", 4)):
        value = pod.config.get(name, default)
        if not isinstance(value, int) or value < 1:
            raise RefusedError(f"spec.trainer.config.{name} is {value!r}: set a whole number above 0")
        found.append(value)
    return found[0], found[1], found[2]


def train(pod: Pod, weights: Weights) -> None:
    """To the last step."""
    steps, rows_per_step, rollouts_per_row = settings(pod)
    state = pod.checkpoints / "state.json"
    step = json.loads(state.read_text())["step"] if state.exists() else 0  # an earlier attempt's
    pod.report(phase="waiting_for_servers", step=step, max_steps=steps)
    pod.wait_for_agents()
    rollouts = Rollouts(pod, pod.config.get("max_output_tokens"))
    left = itertools.islice(itertools.cycle(tasks(pod)), step * rows_per_step, None)  # after an earlier attempt's
    files = sorted((pod.root / "model").glob("*.safetensors"))
    weights.send(files)
    done = 0
    while step < steps:
        pod.report(phase="waiting_for_rollouts")
        batch = [task for task in itertools.islice(left, rows_per_step) for _ in range(rollouts_per_row)]
        results = [result for result in rollouts.run(batch) if result is not None]
        done += len(results)
        # Here a trainer makes a step of the results' tokens, log-probabilities and rewards.
        step += 1
        weights.send(files)
        draft = state.with_name("state.json.new")
        draft.write_text(json.dumps({"step": step}))
        draft.rename(state)
        reward = sum(result.reward for result in results) / len(results) if results else None
        pod.report(phase="training", step=step, reward=reward, rollouts=done, failed_rollouts=rollouts.failed)
        print(f"step {step} of {steps}: mean reward {reward} of {len(results)} rollouts", flush=True)
        pod.wait(0.0)


def main() -> int:
    """Returns the exit code."""
    pod = Pod.read()
    if pod.rank > 0:
        return 0  # one node does all of it
    weights = Weights(pod)
    open_port(pod, weights)
    return end_with(pod, lambda: train(pod, weights))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads may still wait for rollouts
