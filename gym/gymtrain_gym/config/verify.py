"""Whether a run can do without agents: spec.rollout.mode Verify.

The trainer then does what a plain agent does in one turn: seed a session, ask the model server, post the answer to
the resources server. So each agent that a row is for must name both servers, and no other server may call an agent.
"""

from typing import Any

from gymtrain_api.wiring import DataIndex, GymServerInfo
from gymtrain_gym.config.findings import Findings, nearest

_NEEDED = {"model_server": "model", "resources_server": "resources"}


def check(config: Any, servers: list[GymServerInfo], index: DataIndex, findings: Findings) -> None:
    """Adds a finding for each agent that can't be stood in for.

    Args:
        config: the resolved Gym config as plain dicts.
        servers: its servers.
        index: the indexed datasets, which name the agents that matter.
        findings: what is wrong is added here.
    """
    agents = {server.name: server for server in servers if server.kind == "agent"}
    for name in sorted({name for file in index.train for name in file.agents} & agents.keys()):
        settings = config[name]["responses_api_agents"][agents[name].implementation]
        for key, kind in _NEEDED.items():
            _check_reference(name, key, kind, settings.get(key), servers, findings)
    for server in servers:
        called = sorted(agents.keys() & set(server.references))
        if server.kind != "agent" and called:
            findings.add(
                f"config key {server.name}",
                f"calls the agent {called[0]}, and with spec.rollout.mode Verify no agent runs: use mode Agent",
            )


def _check_reference(
    agent: str, key: str, kind: str, reference: Any, servers: list[GymServerInfo], findings: Findings
) -> None:
    where = f"config key {agent}"
    name = reference.get("name") if isinstance(reference, dict) else None
    if not name:
        findings.add(
            where,
            f"has no {key}, which spec.rollout.mode Verify calls in the agent's stead: use mode Agent for this agent",
        )
        return
    known = [server.name for server in servers if server.kind == kind]
    if name not in known:
        findings.add(f"{where}.{key}", f"{name!r} is no {kind} server of the config: {nearest(str(name), known)}")
