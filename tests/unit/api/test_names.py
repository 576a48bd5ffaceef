"""Names of different runs never meet: no two objects of one kind, of whatever runs and servers, have one name."""

import inspect
import itertools
import re
from collections.abc import Callable, Iterator

import pytest

from gymtrain_api import names

RUN_PATTERN = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # as the CRD has it (`validations`)
UID = "11111111-2222-3333-4444-555555555555"

# Words that our own names are made of, and such that look like what we put behind a name.
WORDS = ["a", "gym", "inference", "pods", "trainer", "gateway", "broker", "vllm", "servers", "0123456789", "2"]
MORE_RUNS = ["a-training", "a-sandboxes", "a-run", "a-probe", "a-shape", "a-sb", "a-model", "a--gym", "a-gym-gym"]
MORE_SERVERS = ["_a", "a_", "a__gym", "A", "a b", "ä", "", "-", "a.b", "gym_" * 20, "gym_" * 20 + "a"]

type Named = Iterator[tuple[str, str]]
"""Objects of one run, by what they are, with their names."""


def _one(*functions: Callable[[str], str]) -> Callable[[str], Named]:
    return lambda run: ((function.__name__, function(run)) for function in functions)


def _gym_servers(run: str) -> Named:
    return ((f"server {server}", names.gym_server(run, server)) for server in _servers())


def _numbered(make: Callable[[str, str], str], *values: str) -> Callable[[str], Named]:
    return lambda run: ((f"{make.__name__} {value}", make(run, value)) for value in values)


def _jobs(run: str) -> Named:
    return ((f"job {attempt}", names.trainer_job(run, attempt)) for attempt in (1, 2, 12))


HEX = "0123456789abcdef"
# Each function of `names` stands at every kind of object that is named by it.
KINDS: dict[str, list[Callable[[str], Named]]] = {
    "Deployment": [_one(names.gateway, names.inference, names.broker), _gym_servers],
    "Service": [
        _one(names.gateway, names.gateway_pods, names.inference, names.inference_pods, names.trainer, names.broker),
        _one(names.inference_groups),
        _gym_servers,
    ],
    "Job": [_jobs],
    "Workload": [_one(names.workload)],
    "PodGroup": [_one(names.pod_group)],
    "PodDisruptionBudget": [_one(names.disruption_budget)],
    "ConfigMap": [_one(names.run_config, names.gym_config)],
    "PersistentVolumeClaim": [
        _one(names.model_volume, names.checkpoint_volume, names.compile_cache_volume, names.data_volume)
    ],
    "NetworkPolicy": [
        _one(
            names.network_policy,
            names.inner_network_policy,
            names.gym_network_policy,
            names.worker_network_policy,
            names.sandbox_network_policy,
            names.broker_network_policy,
            names.metrics_network_policy,
        )
    ],
    "Pod": [_numbered(names.preflight, HEX, HEX[::-1]), _numbered(names.sandbox, "abc12", "gym")],
    "Secret, ServiceAccount": [
        _numbered(names.broker_identity, UID, "other"),
        _numbered(names.run_token, UID, "other"),
    ],
    "Role, RoleBinding": [_numbered(names.broker_role, HEX, HEX[::-1])],
    "SandboxTemplate, SandboxWarmPool": [_numbered(names.sandbox_shape, HEX, HEX[::-1]), _one(names.sandbox_probe)],
}


def _runs() -> list[str]:
    words = ["-".join(parts) for count in (1, 2) for parts in itertools.product(WORDS, repeat=count)]
    words += ["-".join(parts) for parts in itertools.product(WORDS[:5], repeat=3)]
    return [run for run in [*words, *MORE_RUNS] if RUN_PATTERN.fullmatch(run) and len(run) <= names.MAX_RUN_NAME]


def _servers() -> list[str]:
    two = [f"{a}{sign}{b}" for a, b in itertools.product(WORDS, repeat=2) for sign in "_-"]
    three = [f"{a}_{b}_{c}" for a, b, c in itertools.product(WORDS[:4], repeat=3)]
    return [*WORDS, *two, *three, *MORE_SERVERS]


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_objects_of_a_kind_have_one_name(kind: str) -> None:
    taken: dict[str, tuple[str, str]] = {}
    for run in _runs():
        for make in KINDS[kind]:
            for what, name in make(run):
                assert taken.setdefault(name, (run, what)) == (run, what), name


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_is_a_dns_label(kind: str) -> None:
    longest = "a" * names.MAX_RUN_NAME
    for run in (longest, longest[:-4] + "-gym", "a"):
        for make in KINDS[kind]:
            for _, name in make(run):
                assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name), name


def test_a_stateful_set_of_workers_has_a_name_that_its_pods_can_carry_in_a_label() -> None:
    """Beside the hash of its revision, which makes 63 characters."""
    longest = names.inference_groups("a" * names.MAX_RUN_NAME)
    assert len(f"{longest}-255") <= 52


def test_pod_sets_of_gym_servers_differ_and_are_dns_labels() -> None:
    found = {server: names.pod_set_of_gym_server(server) for server in [*_servers(), "a_0123456789"]}
    assert len(set(found.values())) == len(found)
    assert [name for name in found.values() if not re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name)] == []


def test_every_name_is_tried() -> None:
    """A new function of `names` belongs into the table above."""
    public = {name for name, one in inspect.getmembers(names, inspect.isfunction) if not name.startswith("_")}
    source = inspect.getsource(inspect.getmodule(_runs) or names)
    assert {name for name in public if f"names.{name}" not in source} == set()


@pytest.mark.parametrize(
    ("run", "server", "name"),
    [
        ("quickstart", "reasoning_gym_simple_agent", "quickstart-gym-reasoning-gym-simple-agent"),
        ("quickstart", "policy_model", "quickstart-gym-policy-model"),
        ("quickstart", "head_server", "quickstart-gym-head-server"),
    ],
)
def test_usual_names_are_readable(run: str, server: str, name: str) -> None:
    assert names.gym_server(run, server) == name


def test_the_label_of_a_server_is_its_name_while_a_label_can_hold_it() -> None:
    assert names.gym_server_label("math_agent") == "math_agent"
    # Selectors of Deployments can't change: runs that are under way have this one.
    assert names.gym_server_label("gym_" * 20) == "x-gym-gym-gym-gym-gym-gym-gym-gym-gym-gym-gym-gym-gym-gy-cdfa77"
